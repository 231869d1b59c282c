// The f32 scalar library: see guides/numerics.md for the errors of all functions.
#ifndef NX_F32_GLSL
#define NX_F32_GLSL
#include "nx_f32_arith.glsl"
#include "nx_f32_exp.glsl"
#include "nx_f32_log.glsl"
#include "nx_f32_pow.glsl"
#include "nx_f32_trig.glsl"
#include "nx_f32_atan.glsl"
#include "nx_f32_erf.glsl"
#endif
