//! The NIF library behind `Nx.Vulkan.NativeV`: decodes terms, calls the engine, encodes terms. It knows no ops.

mod device;
mod error;
mod nativev;
mod tensor;
mod term;

rustler::init!("Elixir.Nx.Vulkan.NativeV");
