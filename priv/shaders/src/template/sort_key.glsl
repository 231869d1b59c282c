// Keys of elements: unsigned integers in the order of the values, made from the element's bits alone. Of floats both
// zeros have one key and NaN has the largest. Elements of 64 bits are pairs of words, the low one first.
layout(constant_id = 0) const uint SIGN = 0u;        // the sign bit; 0 for unsigned integers
layout(constant_id = 1) const uint LARGEST = 0u;     // the largest magnitude that is a number; 0 for integers
layout(constant_id = 2) const uint MASK = 0xffffffffu;
layout(constant_id = 3) const uint DESCENDING = 0u;

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

bool is_after(const in KEY a, const in KEY b) { return a.y > b.y || (a.y == b.y && a.x > b.x); }
uint digit_of(const in KEY key, const in uint shift) {
    return (shift < 32u ? key.x >> shift : key.y >> (shift - 32u)) & 255u;
}
#endif
