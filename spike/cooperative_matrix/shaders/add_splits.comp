#version 460
#extension GL_EXT_buffer_reference : require
// Adds up the partial products of `splits` parts of K, in their order.
layout(local_size_x = 256) in;
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vec4s { vec4 x[]; };
layout(push_constant) uniform Push { Vec4s from, to; uint fours, splits; };
void main() {
  uint i = gl_GlobalInvocationID.x;
  if (i >= fours) return;
  vec4 sum = from.x[i];
  for (uint s = 1; s < splits; s++) sum += from.x[s * fours + i];
  to.x[i] = sum;
}
