// What the kernels that split an f32 operand share: an f32 x becomes x s = hi + lo / 2^LO_SHIFT with f16 hi and lo, where s is the power
// of two that brings the largest |x| of a row of A (a column of B) into [2^14, 2^15).
//
// Planes: [rows][block of K][PLANES][BLOCK] of f16 where the planes are interleaved, or [PLANES][rows][K]; as uvec4, eight f16 each.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 256) in;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vec4s { vec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Planes { uvec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counter { uint x; };
layout(push_constant) uniform Push {
  Vec4s source;
  Planes planes;
  Floats scales;   // 1 / s for each row of A or column of B; behind A's the elements lost in each row
  Floats partials; // largest |x| by part of K and column
  Counter lost;    // elements that the two f16 numbers don't hold to 21 bits
  uint k;          // contracted axis
  uint columns;
  uint padded;     // k, rounded up to the block
  uint parts;
  uint row_stride, block_stride, plane_stride; // in f16
  uint rows;       // of A
  Floats a_scales;
};

float exponent_of(float largest) {
  uint bits = floatBitsToUint(largest) >> 23;
  return float(clamp(int(bits) - 127, -112, 127));
}

uint split(float x, float scale, out float16_t hi, out float16_t lo) {
  float scaled = x * scale;
  // An unknown zero: Mesa takes float(float16_t(x)) for x, precise or not.
  hi = uint16BitsToFloat16(float16BitsToUint16(float16_t(scaled)) ^ uint16_t(plane_stride & 1));
  precise float rest = scaled - float(hi);
  lo = uint16BitsToFloat16(float16BitsToUint16(float16_t(rest * float(1 << LO_SHIFT))) ^ uint16_t(plane_stride & 1));
  float error = abs(rest - float(lo) * (1.0 / float(1 << LO_SHIFT)));
  return error <= abs(scaled) * (1.0 / 2097152.0) ? 0u : 1u;
}

uint store(uint row, uint at, float x[8], float scale) {
  uvec4 hi, lo;
  uint lost_here = 0;
  [[unroll]] for (uint i = 0; i < 4; i++) {
    f16vec2 h, l;
    float16_t a, b;
    lost_here += split(x[2 * i], scale, a, b);
    h.x = a; l.x = b;
    lost_here += split(x[2 * i + 1], scale, a, b);
    h.y = a; l.y = b;
    hi[i] = packFloat2x16(h);
    lo[i] = packFloat2x16(l);
  }
  uint to = row * row_stride + at / BLOCK * block_stride + at % BLOCK;
  planes.x[to / 8] = hi;
#if PLANES == 2
  planes.x[(to + plane_stride) / 8] = lo;
#endif
  return lost_here;
}

// Scales of results beyond 2^+-60 could leave f32's range on the way.
bool far(float exponent) { return abs(exponent) > 60.0 && exponent > -112.0; }
