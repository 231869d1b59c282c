// The accumulator of a reduction as 32-bit words; what they mean is up to the slots.
#if ACC_WORDS == 1
#define ACC uint
#elif ACC_WORDS == 2
#define ACC uvec2
#else
#define ACC uvec4
#endif

ACC slot_identity() { return ACC(0u); }
ACC slot_load(const in uint o, const in uint r) { return ACC(o + r); }
ACC slot_combine(const in ACC a, const in ACC b) { return a + b; }
void slot_store(const in uint o, const in ACC value) {}
