#version 460
// Addresses, small types, subgroups, atomics, switches, debug information (-gVS): what newer shaders hold.
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_atomic_float : require
#extension GL_EXT_shader_atomic_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_debug_printf : enable
layout(local_size_x = 64) in;
layout(buffer_reference) buffer Ref;
layout(buffer_reference, scalar) buffer Ref { Ref next; float v[]; };
layout(set=0,binding=0,scalar) buffer A { uint64_t c; float f; f16vec3 h; int8_t b[5]; i64vec2 l; mat4 m[3]; Ref r; };
layout(push_constant, scalar) uniform P { Ref p; uint8_t k; mat3x4 mm; };
float rec(inout float x, int k) { [[unroll]] for (int i=0;i<k;i++) { x += float(i); if (x > 3.0) continue; if (x < -3.0) break; } return x; }
void main() {
  float x = subgroupAdd(p.v[gl_LocalInvocationID.x]);
  atomicAdd(f, 1.0f); atomicAdd(c, 1ul);
  h = f16vec3(float16_t(x)); b[gl_LocalInvocationIndex % 5] = int8_t(k);
  float y = x; y = rec(y, 4); switch (int(y)) { case 1: x = 2.0; case 2: x += 1.0; break; default: x = subgroupShuffle(x, 3); }
  f = x + y + m[1][2][3] + mm[1][2]; uvec4 bal = subgroupBallot(x > 0); l.x = int64_t(bal.x);
  int e; float fr = frexp(x, e); float ip; float fp = modf(fr, ip); f += fp + float(e) + p.next.v[1];
  debugPrintfEXT("%f", f);
}
