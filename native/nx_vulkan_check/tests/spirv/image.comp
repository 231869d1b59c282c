#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(set = 0, binding = 0, rgba8) uniform image2D picture;
void main() { imageStore(picture, ivec2(gl_GlobalInvocationID.xy), vec4(1.0)); }
