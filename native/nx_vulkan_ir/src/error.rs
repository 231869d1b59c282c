//! The one error type of the engine. Every variant carries what a caller needs to act on it.

use std::time::Duration;

use crate::{DType, Type};

/// What may fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What goes wrong. Variants carry what a caller needs to act; their fields are in the message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// No Vulkan loader, no driver, or no device that the engine can use.
    #[error("no usable Vulkan device: {reason}")]
    NoDevice {
        /// Why, with the devices that were found.
        reason: String,
    },

    /// The device, or this version of the engine, can't do `op` for `dtype`; `needs` names what is missing.
    #[error("{op} is not supported{}: needs {needs}", dtype.map(|t| format!(" for {t}")).unwrap_or_default())]
    Unsupported {
        /// The op.
        op: String,
        /// The type that it can't be done for, if others can.
        dtype: Option<DType>,
        /// What is missing.
        needs: String,
    },

    /// A program, an instruction or an attribute breaks a rule of the Program format.
    #[error("invalid program: {op}: {reason}")]
    InvalidProgram {
        /// The op.
        op: String,
        /// Which rule is broken.
        reason: String,
    },

    /// A caller's argument is wrong.
    #[error("invalid argument: {what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// Which argument.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },

    /// What can never fit in the memory of this device, or of any.
    #[error("{size_bytes} bytes can never fit: at most {limit_bytes} can")]
    TooLarge {
        /// Bytes that were asked for.
        size_bytes: u64,
        /// Bytes that can fit.
        limit_bytes: u64,
    },

    /// The allocation does not fit now, after trimming and waiting; of 0 bytes where the driver had no memory for
    /// something of its own.
    #[error(
        "out of device memory: {} with {in_use_bytes} in use of {budget_bytes}",
        match size_bytes {
            0 => "the driver asked for some of its own".to_string(),
            _ => format!("asked for {size_bytes} bytes"),
        }
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        size_bytes: u64,
        /// Bytes that others use.
        in_use_bytes: u64,
        /// Bytes that all may use.
        budget_bytes: u64,
    },

    /// No way to run a function takes as little memory as it may.
    #[error(
        "a run takes {needed_bytes} bytes at least besides its arguments, and the option memory, or what the device \
         has beside them, allows {budget_bytes}: allow more, or give it smaller batches"
    )]
    OverBudget {
        /// Bytes that a run takes at least.
        needed_bytes: u64,
        /// Bytes that it may take.
        budget_bytes: u64,
    },

    /// The owner of what is allocated may not have so much.
    #[error(
        "out of memory: asked for {size_bytes} bytes with {held_bytes} held of the {limit_bytes} that this process may \
         have: raise its limit by Nx.Vulkan.memory_limit/2, or give back what it holds"
    )]
    OverLimit {
        /// Bytes that were asked for.
        size_bytes: u64,
        /// Bytes that the owner has.
        held_bytes: u64,
        /// Bytes that it may have.
        limit_bytes: u64,
    },

    /// The buffer was deallocated explicitly before this use.
    #[error("the tensor was deallocated")]
    Released,

    /// Whoever asked for the run no longer wants it.
    #[error("the run was stopped: whoever asked for it is gone")]
    Stopped,

    /// The driver gave up; a new engine is needed.
    #[error("the Vulkan device was lost")]
    DeviceLost,

    /// The device completed nothing for so long as the user lets a thread wait. What it runs goes on.
    #[error(
        "expected the device to complete some of its work within the time limit of {} ms, but it completed none; it \
         may still do so: ask again, or raise NX_VULKAN_TIME_LIMIT or config :nx_vulkan, :time_limit",
        limit.as_millis()
    )]
    TimedOut {
        /// How long a thread waits.
        limit: Duration,
    },

    /// A shader file that can't be read, is malformed, or does not fit the call or the device.
    #[error("bad shader {path}: {reason}")]
    BadShader {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The kernel for this call is not compiled yet and the caller asked not to compile.
    #[error("the kernel is not compiled yet")]
    NeedsCompile,

    /// An op of a compiled program failed. A fused op lists what it does after its name.
    #[error("{cause}, in {op} of {} giving {}", listed(operands), listed(outs))]
    InOp {
        /// The op, and what it does.
        op: String,
        /// The types of its operands.
        operands: Vec<Type>,
        /// Those of its results.
        outs: Vec<Type>,
        /// Why it failed.
        cause: Box<Error>,
    },

    /// An iteration did not settle.
    #[error("{op} did not converge in {sweeps} sweeps")]
    NoConvergence {
        /// The op.
        op: String,
        /// Sweeps that it took.
        sweeps: u32,
    },

    /// A Vulkan call failed.
    #[error("{call} failed: {cause}")]
    Vulkan {
        /// The call.
        call: &'static str,
        /// What the driver says.
        cause: String,
    },

    /// Reading or writing a file failed.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        cause: String,
    },
}

/// The call in which drivers compile modules.
pub const CREATE_PIPELINES: &str = "vkCreateComputePipelines";

fn listed(types: &[Type]) -> String {
    match types {
        [] => "nothing".to_string(),
        types => types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Error {
    /// The error itself where it has been told which op it came from.
    pub fn cause(&self) -> &Error {
        match self {
            Error::InOp { cause, .. } => cause.cause(),
            other => other,
        }
    }

    /// Whether the driver did not compile a module.
    pub fn is_refused_kernel(&self) -> bool {
        matches!(self.cause(), Error::Vulkan { call: CREATE_PIPELINES, .. } | Error::BadShader { .. })
    }
}
