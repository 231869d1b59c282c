//! How a call on raw buffers fails, in the words of the NativeV contract.

use crate::Error;

/// The outcomes that a caller of NativeV tells apart.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// A buffer's size does not fit the sizes that the call names.
    #[error("a buffer's size does not fit the call")]
    SizeMismatch,
    /// An op code, a number, a header or an aliasing that the function does not take.
    #[error("an argument is not one that the function takes")]
    BadInput,
    /// There is no device, or it can't be opened.
    #[error("{0}")]
    VulkanInit(String),
    /// The file can't be read, or is no well-formed SPIR-V compute module.
    #[error("{0}")]
    SpvRead(String),
    /// The shader does not fit the call or the device, or running it failed, now or earlier on the same device.
    #[error("{0}")]
    Dispatch(String),
    /// Memory for a buffer is not to be had, or bytes did not reach it.
    #[error("{0}")]
    Upload(String),
    /// A buffer's bytes did not reach the host.
    #[error("{0}")]
    Download(String),
    /// The shader has to be read or compiled and the call was not allowed to.
    #[error("the shader is not compiled yet")]
    NeedsCompile,
}

impl Failure {
    pub(crate) fn of_dispatch(error: Error) -> Failure {
        match error {
            Error::NeedsCompile => Failure::NeedsCompile,
            error => Failure::common(&error).unwrap_or_else(|| Failure::Dispatch(error.to_string())),
        }
    }

    pub(crate) fn of_upload(error: Error) -> Failure {
        Failure::common(&error).unwrap_or_else(|| Failure::Upload(error.to_string()))
    }

    /// Waiting shows what went wrong since the last wait.
    pub(crate) fn of_download(error: Error) -> Failure {
        match error {
            Error::DeviceLost | Error::TimedOut { .. } | Error::Vulkan { .. } => Failure::Dispatch(error.to_string()),
            error => Failure::common(&error).unwrap_or_else(|| Failure::Download(error.to_string())),
        }
    }

    fn common(error: &Error) -> Option<Failure> {
        match error {
            Error::NoDevice { .. } => Some(Failure::VulkanInit(error.to_string())),
            Error::BadShader { .. } | Error::Io { .. } => Some(Failure::SpvRead(error.to_string())),
            _ => None,
        }
    }
}
