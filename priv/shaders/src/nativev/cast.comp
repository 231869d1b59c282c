#version 460
// out[i] = in[i] in another type, i < n, by the rules of Nx.as_type.
//
// One invocation per element; 256 per workgroup, ceil(n / 256) workgroups. Bindings: 0 in, 1 out. Push: n @0. Defines:
// FROM and TO are the storage types, WIDE what CAST takes, F64, INT64 and INT8 say which of these types take part.
// Between floats: to nearest even. Float to integer: truncates, clamps to the range, NaN gives 0. Between integers:
// wraps.
#extension GL_GOOGLE_include_directive : require
#ifdef INT64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
#ifdef INT8
#extension GL_EXT_shader_8bit_storage : require
#endif
#include "nx_cast.glsl"
#ifdef F64
#include "nx_cast_f64.glsl"
#endif
#ifdef INT64
#include "nx_cast_int64.glsl"
#ifdef F64
#include "nx_cast_f64_int64.glsl"
#endif
#endif
#include "grid.glsl"

layout(set = 0, binding = 0, std430) readonly buffer In { FROM operand[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Out { TO result[]; };
layout(push_constant, std430) uniform Push { uint n; };

void main() {
    uint i = element_index();
    if (i < n) {
        result[i] = TO(CAST(WIDE(operand[i])));
    }
}
