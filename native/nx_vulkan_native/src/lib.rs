//! The NIF library behind `Nx.Vulkan.NativeV`: decodes terms, calls the engine, encodes terms. It knows no ops.

mod chain;
mod device;
mod engines;
mod error;
mod executable;
mod halt;
mod memory;
mod nativev;
mod profile;
mod tensor;
mod term;

rustler::init!("Elixir.Nx.Vulkan.NativeV", load = load);

fn load(env: rustler::Env, _info: rustler::Term) -> bool {
    halt::wait_for_device(env);
    true
}
