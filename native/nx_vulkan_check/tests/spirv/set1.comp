#version 450
layout(local_size_x = 1) in;
layout(set = 1, binding = 0) buffer B { float x[]; };
void main() { x[0] = 1.0; }
