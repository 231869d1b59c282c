//! Programs, and how they are written. What passes and kernels make of them is the engine's.

pub use nx_vulkan_ir::program::attribute::{self, Axes, Scalar};
pub use nx_vulkan_ir::program::batched;
pub use nx_vulkan_ir::program::builder::Arg;
pub use nx_vulkan_ir::program::dot::programs_to_dot;
pub use nx_vulkan_ir::program::file::{Recording, Tolerance};
pub use nx_vulkan_ir::program::wire::Attr;
pub use nx_vulkan_ir::program::{
    Binary, Branches, Builder, Conv, Elementwise, Fourier, Function, Instruction, Linalg, Loop, Op, Operand, Program,
    Reduction, Transform, Unary, Windows,
};

#[cfg(not(feature = "testing"))]
pub(crate) use nx_vulkan_ir::program::*;
#[cfg(feature = "testing")]
pub use nx_vulkan_ir::program::*;
