// The accumulator of a reduction as 32-bit words; what they mean is up to the slots. ACC_WORDS 0: those of several
// reductions, as a structure that the generator gives other members of the same types.
#if ACC_WORDS == 0
struct Several { uint one; uvec2 two; uvec4 four; };
#define ACC Several
#define ACC_OF(n) ACC(n, uvec2(n), uvec4(n))
#define ACC_SUM(a, b) ACC(a.one + b.one, a.two + b.two, a.four + b.four)
#else
#if ACC_WORDS == 1
#define ACC uint
#elif ACC_WORDS == 2
#define ACC uvec2
#else
#define ACC uvec4
#endif
#define ACC_OF(n) ACC(n)
#define ACC_SUM(a, b) (a + b)
#endif

ACC slot_identity() { return ACC_OF(0u); }
ACC slot_load(const in uint o, const in uint r) { return ACC_OF(o + r); }
ACC slot_combine(const in ACC a, const in ACC b) { return ACC_SUM(a, b); }
void slot_store(const in uint o, const in ACC value) {}
