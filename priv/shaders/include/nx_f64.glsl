// The scalar functions of compute type f64; see nx_f64_core.glsl for how they are computed.
#include "nx_f64_basic.glsl"
#include "nx_f64_exp.glsl"
#include "nx_f64_log.glsl"
