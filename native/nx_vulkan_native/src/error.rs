//! Engine errors as terms with the fields of `Nx.Vulkan.Error`.

use nx_vulkan_engine::Error;
use rustler::{Atom, Encoder, Env, Term};

mod atoms {
    rustler::atoms! {
        error, needs_compile,
        no_device, unsupported, invalid_program, invalid_argument, too_large, out_of_memory, released, device_lost,
        bad_shader, vulkan, io,
    }
}

pub fn kind(error: &Error) -> Atom {
    match error {
        Error::NoDevice { .. } => atoms::no_device(),
        Error::Unsupported { .. } => atoms::unsupported(),
        Error::InvalidProgram { .. } => atoms::invalid_program(),
        Error::InvalidArgument { .. } => atoms::invalid_argument(),
        Error::TooLarge { .. } => atoms::too_large(),
        Error::OutOfMemory { .. } => atoms::out_of_memory(),
        Error::Released => atoms::released(),
        Error::DeviceLost => atoms::device_lost(),
        Error::BadShader { .. } => atoms::bad_shader(),
        Error::NeedsCompile => atoms::needs_compile(),
        Error::Vulkan { .. } => atoms::vulkan(),
        Error::Io { .. } => atoms::io(),
    }
}

/// `{:error, kind, message}`, for calls that are no op.
pub fn encode_short<'a>(env: Env<'a>, error: &Error) -> Term<'a> {
    (atoms::error(), kind(error), error.to_string()).encode(env)
}
