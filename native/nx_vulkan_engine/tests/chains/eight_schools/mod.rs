//! The eight-schools example.

#[path = "../../../examples/eight_schools/device.rs"]
mod device;
#[path = "../../../examples/eight_schools/diagnostics.rs"]
#[allow(dead_code)]
mod diagnostics;
#[path = "../../../examples/eight_schools/model.rs"]
#[allow(dead_code)]
mod model;
mod on_device;
mod on_host;
#[path = "../../../examples/eight_schools/random.rs"]
mod random;
#[path = "../../../examples/eight_schools/report.rs"]
#[allow(dead_code)]
mod report;
#[path = "../../../examples/eight_schools/sampler.rs"]
#[allow(dead_code)]
mod sampler;
