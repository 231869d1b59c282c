#version 460
// Every kind of member: small types, matrices of both orders, structs in arrays, addresses, specialized lengths,
// offsets out of order.
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
layout(local_size_x = 32) in;
struct S { vec3 a; float b; mat3 m; uint8_t c; f16vec3 h; double d; };
struct T { S s[3]; int64_t q; };
layout(buffer_reference) buffer Node;
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Node { Node next; T t; mat4x3 mm[2]; float tail[]; };
layout(buffer_reference, scalar) buffer Sc { uint8_t z; vec3 v[3]; layout(row_major) mat2x3 r[2]; f16mat3 hm; S s; };
layout(buffer_reference, std430) buffer VecRef { vec4 v[]; };
layout(set=0,binding=0,scalar) buffer A { float x; vec3 y; mat3 m; layout(row_major) mat3x2 r; T t; double d; dmat2x3 dm; S tail[]; } a;
layout(set=0,binding=1,scalar) readonly buffer B { layout(offset=32) vec2 p; layout(offset=0) float q; layout(offset=48) mat2 mm[2][3]; } b;
layout(constant_id = 1) const uint N = 7;
layout(set=0,binding=2,scalar) buffer C { float c[N]; float after; } c;
layout(push_constant, scalar) uniform P { Node n; Sc s; VecRef v; layout(row_major) mat2x4 pm; float e; } p;
void main() {
  a.x = b.q + a.m[1][2] + a.r[1].x + float(a.dm[0][1]) + a.tail[3].b + a.t.s[1].m[2].x + c.c[2] + c.after;
  a.y = p.n.next.t.s[2].a + p.n.mm[1][2] + p.s.v[2] + p.s.r[1][1] + vec3(p.s.hm[1]) + p.s.s.m[1];
  a.m = p.s.s.m; mat4x3 k = p.n.mm[0]; a.y += k[1]; p.v.v[3] = vec4(p.pm[1]); p.n.tail[4] = p.e; a.t = p.n.t; a.tail[1] = p.s.s;
  mat2x3 rr[2] = p.s.r; a.y += rr[0][1];
  a.x += b.mm[1][2][0].x;
}
