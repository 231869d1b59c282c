"""Writes the GLSL of a product kernel: `kernel.py ROWS VECTORS STEPS`.

A workgroup is one vector of 8 invocations, each with ROWS x VECTORS results. Its rows come from a push constant, its columns from the
workgroup's number. STEPS of the contracted axis stand one after the other, and C is added to.
"""

import sys

rows, vectors, steps = map(int, sys.argv[1:])
lines = [
    "#version 460",
    "#extension GL_EXT_buffer_reference : require",
    "#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require",
    "layout(local_size_x = 8) in;",
    "layout(buffer_reference, std430, buffer_reference_align = 4) buffer F { float v[]; };",
    "layout(push_constant) uniform P { uint64_t a, b, c; uint lda, ldb, ldc, first_step, first_row; };",
    "void main() {",
    f"uint column = gl_WorkGroupID.x * {8 * vectors} + gl_LocalInvocationID.x;",
    "F at_c = F(c);",
    "uint64_t at_b = b + uint64_t(first_step * ldb + column) * 4;",
]
for r in range(rows):
    lines.append(f"F a{r} = F(a + uint64_t((first_row + {r}) * lda + first_step) * 4);")
    lines += [f"precise float s{r}_{v} = 0.0;" for v in range(vectors)]
for k in range(steps):
    lines.append("{")
    lines += [f"float b{v} = F(at_b).v[{8 * v}];" for v in range(vectors)]
    for r in range(rows):
        lines.append(f"float x = a{r}.v[{k}];" if r == 0 else f"x = a{r}.v[{k}];")
        lines += [f"s{r}_{v} = s{r}_{v} + x * b{v};" for v in range(vectors)]
    lines += ["at_b += uint64_t(ldb) * 4;", "}"]
lines.append("uint at;")
for r in range(rows):
    for v in range(vectors):
        lines.append(f"at = (first_row + {r}) * ldc + column + {8 * v}; at_c.v[at] = at_c.v[at] + s{r}_{v};")
print("\n".join(lines + ["}"]))
