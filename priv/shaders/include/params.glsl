// The parameters of a generated kernel: 32-bit words in push constants. Kernels with more words get the address of a
// table in words 0 and 1, and the code generator replaces nx_param.
#ifndef PARAMETER_WORDS
#define PARAMETER_WORDS 32
#endif
layout(push_constant) uniform Params { uint w[PARAMETER_WORDS]; } nx_params;

uint nx_param(const in uint k) { return nx_params.w[k]; }

// Workgroups are laid out in two dimensions once there are more than one dimension allows.
uint nx_group() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
