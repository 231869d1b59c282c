// Where elements go that a workgroup orders by one digit, those with equal digits in their order. Each subgroup takes
// SUBGROUP neighbours at a time: by a ballot for each bit an invocation learns who else has its digit.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint SUBGROUP = 32u;
// Whether elements are stored, and their places.
layout(constant_id = 2) const uint VALUES = 1u;
layout(constant_id = 3) const uint RANKS = 1u;
#define LOCAL gl_WorkGroupSize.x
#define DIGITS 256u

// A step for each element of an invocation. Compilers leave loops with barriers as they are, and arrays that loops go
// through are no registers.
#define FOUR(STEP) STEP(0u) STEP(1u) STEP(2u) STEP(3u)
#if KEY_WORDS == 1
#define ITEMS 8u
#define EACH_ITEM(STEP) FOUR(STEP) STEP(4u) STEP(5u) STEP(6u) STEP(7u)
#else
#define ITEMS 4u
#define EACH_ITEM(STEP) FOUR(STEP)
#endif
#define TILE (ITEMS * LOCAL)
#define COUNTS (DIGITS * (LOCAL / SUBGROUP))

// First how many elements of each digit a subgroup has seen; once all have seen theirs, where those of a subgroup
// begin. Then the elements in their new order.
shared uint shared_words[COUNTS > TILE * KEY_WORDS ? COUNTS : TILE * KEY_WORDS];
// Where each digit begins.
shared uint starts[DIGITS];
// Elements of as many neighbouring digits as a subgroup has invocations: of no fewer than 4.
shared uint sums[DIGITS / 4u];

uint own_lane() { return gl_SubgroupInvocationID; }
uint own_id() { return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID; }

// Before the first element. The next barrier must come before `place_among_seen`.
void forget_digits() {
    for (uint d = own_id(); d < COUNTS; d += LOCAL) shared_words[d] = 0u;
}

// Until all invocations of a subgroup have read and written their counts.
void wait_for_subgroup() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

// How many elements with this digit come before an invocation's among those that its subgroup has seen.
uint place_among_seen(const in uint digit) {
    uvec2 peers = uvec2(0xffffffffu);
    [[unroll]] for (uint bit = 0u; bit < 8u; ++bit) {
        bool is_set = ((digit >> bit) & 1u) != 0u;
        uvec4 votes = subgroupBallot(is_set);
        uint others = is_set ? 0u : 0xffffffffu;
        peers.x &= votes.x ^ others;
        if (SUBGROUP > 32u) peers.y &= votes.y ^ others;
    }
    if (SUBGROUP < 32u) peers.x &= (1u << SUBGROUP) - 1u;
    if (SUBGROUP <= 32u) peers.y = 0u;
    uint cell = gl_SubgroupID * DIGITS + digit;
    uint seen = shared_words[cell];
    uvec2 below = gl_SubgroupLtMask.xy;
    uint earlier = uint(bitCount(peers.x & below.x) + bitCount(peers.y & below.y));
    wait_for_subgroup();
    if (earlier == 0u) shared_words[cell] = seen + uint(bitCount(peers.x) + bitCount(peers.y));
    wait_for_subgroup();
    return seen + earlier;
}

// Adds up what the subgroups have seen. Begins and ends with a barrier.
void begin_digits() {
    uint id = own_id(), subgroups = LOCAL / SUBGROUP;
    barrier();
    for (uint d = id; d < DIGITS; d += LOCAL) {
        uint sum = 0u;
        for (uint s = 0u; s < subgroups; ++s) {
            uint count = shared_words[s * DIGITS + d];
            shared_words[s * DIGITS + d] = sum;
            sum += count;
        }
        uint before = subgroupExclusiveAdd(sum);
        starts[d] = before;
        if (own_lane() == SUBGROUP - 1u) sums[d / SUBGROUP] = before + sum;
    }
    barrier();
    for (uint d = id; d < DIGITS; d += LOCAL) {
        uint start = starts[d];
        for (uint s = 0u; s < d / SUBGROUP; ++s) start += sums[s];
        for (uint s = 0u; s < subgroups; ++s) shared_words[s * DIGITS + d] += start;
        starts[d] = start;
    }
    barrier();
}

// Where an element goes that has so many of its digit before it among those of its subgroup. A barrier must come after
// it, before elements are exchanged.
uint place_of(const in uint digit, const in uint before) {
    return shared_words[gl_SubgroupID * DIGITS + digit] + before;
}

void put_shared(const in uint at, const in KEY element) {
    shared_words[at] = low_word(element);
#if KEY_WORDS == 2
    shared_words[TILE + at] = element.y;
#endif
}

KEY get_shared(const in uint at) {
#if KEY_WORDS == 2
    return KEY(shared_words[at], shared_words[TILE + at]);
#else
    return shared_words[at];
#endif
}

// The digit of `raw[k]` in the low byte, above it how many with that digit come before. What fills the tile comes last
// in it, and sorts last.
#define RANK(k) { \
    uint digit = mine + k * SUBGROUP < count ? digit_of(key_of(raw[k]), shift) : DIGITS - 1u; \
    places[k] = digit | (place_among_seen(digit) << 8u); \
}

// Puts the elements of a tile into shared memory in the order of the digit at `shift`: `raw`, which are its elements
// `mine + k * SUBGROUP`, of `count` in all. Declares `places`, where they go. A barrier must come after it.
#define EXCHANGE_BY_DIGIT \
    forget_digits(); \
    barrier(); \
    uint places[ITEMS]; \
    EACH_ITEM(RANK) \
    begin_digits(); \
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) places[k] = place_of(places[k] & 255u, places[k] >> 8u); \
    barrier(); \
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) put_shared(places[k], raw[k]);
