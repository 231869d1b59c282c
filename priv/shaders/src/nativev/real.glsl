// The float type of a variant and its scalar library: `REAL` is float, or double with -DF64; FN(exp) is nx_exp_f32 or
// nx_exp_f64.
#extension GL_GOOGLE_include_directive : require
#ifdef F64
#include "nx_f64.glsl"
#define REAL double
#define HALF_LOG_TWO_PI 0.91893853320467274178LF
#define FN(op) nx_##op##_f64
#define INFINITY packDouble2x32(uvec2(0u, 0x7ff00000u))
#else
#include "nx_f32.glsl"
#define REAL float
#define HALF_LOG_TWO_PI 0.91893853320467274178
#define FN(op) nx_##op##_f32
#define INFINITY uintBitsToFloat(0x7f800000u)
#endif
