// What a team of TEAM invocations of a workgroup of 256 accumulated: those `stride` apart, `lane` the number of one in
// its team. Its shape depends on TEAM alone. The total is that of lane 0.
shared ACC nx_partial[256];

#define HALVE(v, count) [[unroll]] for (uint k = 0u; k < count; ++k) v[k] = slot_combine(v[k], v[k + count]);

ACC team_total(const in uint lane, const in uint stride, const in ACC own) {
    uint id = gl_LocalInvocationID.x;
    nx_partial[id] = own;
    // Each half with the other, three levels between barriers.
    for (uint left = TEAM; left > 1u;) {
        barrier();
        uint parts = min(left, 8u);
        left /= parts;
        if (lane < left) {
            ACC v[8];
            [[unroll]] for (uint k = 0u; k < 8u; ++k) v[k] = nx_partial[id + min(k, parts - 1u) * left * stride];
            if (parts > 4u) { HALVE(v, 4u) }
            if (parts > 2u) { HALVE(v, 2u) }
            HALVE(v, 1u)
            nx_partial[id] = v[0];
        }
    }
    return nx_partial[id];
}
