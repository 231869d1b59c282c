// Keys of elements: unsigned integers in the order of the values, made from the element's bits alone. Of floats both
// zeros have one key and NaN has the largest. Elements of 64 bits are pairs of words, the low one first. Parameters:
// the sign bit, 0 for unsigned integers; the largest magnitude that is a number, 0 for integers; all bits of the type;
// whether the order is descending. Of pairs they are those of the high word.
#define SIGN nx_param(0u)
#define LARGEST nx_param(1u)
#define MASK nx_param(2u)
#define DESCENDING nx_param(3u)

#if KEY_WORDS == 1
#define KEY uint
#define LAST_KEY 0xffffffffu

KEY key_of(const in KEY raw) {
    KEY key = (raw ^ SIGN) & MASK;
    if (LARGEST != 0u) {
        uint magnitude = raw & (SIGN - 1u);
        if (magnitude > LARGEST) key = MASK;
        else if (magnitude == 0u) key = SIGN;
        else if ((raw & SIGN) != 0u) key = ~raw & MASK;
    }
    return DESCENDING != 0u ? ~key & MASK : key;
}

uint low_word(const in KEY raw) { return raw; }
bool is_after(const in KEY a, const in KEY b) { return a > b; }
uint digit_of(const in KEY key, const in uint shift) { return (key >> shift) & 255u; }
#else
#define KEY uvec2
#define LAST_KEY uvec2(0xffffffffu)

KEY key_of(const in KEY raw) {
    KEY key = uvec2(raw.x, raw.y ^ SIGN);
    if (LARGEST != 0u) {
        uint magnitude = raw.y & (SIGN - 1u);
        if (magnitude > LARGEST || (magnitude == LARGEST && raw.x != 0u)) key = uvec2(MASK);
        else if ((magnitude | raw.x) == 0u) key = uvec2(0u, SIGN);
        else if ((raw.y & SIGN) != 0u) key = ~raw;
    }
    return DESCENDING != 0u ? ~key : key;
}

uint low_word(const in KEY raw) { return raw.x; }
bool is_after(const in KEY a, const in KEY b) { return a.y > b.y || (a.y == b.y && a.x > b.x); }
uint digit_of(const in KEY key, const in uint shift) {
    return (shift < 32u ? key.x >> shift : key.y >> (shift - 32u)) & 255u;
}
#endif
