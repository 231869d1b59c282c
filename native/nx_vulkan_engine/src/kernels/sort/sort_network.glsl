// A bitonic network on (key, place) in shared memory: elements with equal keys come in the order of their places.
#define TILE 2048u
shared KEY keys[TILE];
shared uint places[TILE];

// Sorts each of the groups of `padded` elements, a power of two, among the first `used`. Starts with a barrier.
void sort_shared(const in uint id, const in uint used, const in uint padded) {
    for (uint size = 2u; size <= padded; size <<= 1u) {
        for (uint span = size; span > 1u; span >>= 1u) {
            uint half_span = span >> 1u;
            barrier();
            for (uint p = id; p < used / 2u; p += 256u) {
                uint low = ((p & ~(half_span - 1u)) << 1u) | (p & (half_span - 1u));
                // The first step of a size meets the halves end to end: both are ascending.
                uint high = span == size ? low ^ (size - 1u) : low + half_span;
                KEY a = keys[low], b = keys[high];
                uint i = places[low], j = places[high];
                if (is_after(a, b) || (a == b && i > j)) {
                    keys[low] = b;
                    keys[high] = a;
                    places[low] = j;
                    places[high] = i;
                }
            }
        }
    }
    barrier();
}
