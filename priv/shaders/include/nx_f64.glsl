// The scalar functions of compute type f64; see nx_f64_core.glsl for how they are computed and
// guides/numerics.md for their errors.
#ifndef NX_F64_GLSL
#define NX_F64_GLSL
#include "nx_f64_basic.glsl"
#include "nx_f64_exp.glsl"
#include "nx_f64_log.glsl"
#include "nx_f64_erf.glsl"
#include "nx_f64_trig.glsl"
#include "nx_f64_atan.glsl"
#endif
