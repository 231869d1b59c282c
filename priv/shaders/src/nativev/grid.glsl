// The index of an invocation in a one-dimensional launch, whose workgroups may be spread over a second grid dimension.
layout(local_size_x = 256) in;

uint element_index() {
    uint workgroup = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    return workgroup * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
}
