//! Engine errors as `{:error, kind, op, message, details}`, the fields of `Nx.Vulkan.Error`.

use nx_vulkan_engine::{Error, Type};
use rustler::{Atom, Encoder, Env, Term};

use crate::engines;

mod atoms {
    rustler::atoms! {
        ok, error, nil, needs_compile,
        no_device, unsupported, invalid_program, invalid_argument, too_large, out_of_memory, released, stopped, device_lost, timed_out,
        bad_shader, vulkan, io, no_convergence, sweeps,
        operands, outs, dtype, needs, reason, what, expected, got, size_bytes, limit_bytes, in_use_bytes, needed_bytes, held_bytes, budget_bytes, device, path, call, cause, limit_ms,
    }
}

pub fn kind(error: &Error) -> Atom {
    match error {
        Error::NoDevice { .. } => atoms::no_device(),
        Error::Unsupported { .. } => atoms::unsupported(),
        Error::InvalidProgram { .. } => atoms::invalid_program(),
        Error::InvalidArgument { .. } => atoms::invalid_argument(),
        Error::TooLarge { .. } => atoms::too_large(),
        Error::OutOfMemory { .. } | Error::OverBudget { .. } | Error::OverLimit { .. } => atoms::out_of_memory(),
        Error::Released => atoms::released(),
        Error::Stopped => atoms::stopped(),
        Error::DeviceLost => atoms::device_lost(),
        Error::TimedOut { .. } => atoms::timed_out(),
        Error::BadShader { .. } => atoms::bad_shader(),
        Error::NeedsCompile => atoms::needs_compile(),
        Error::NoConvergence { .. } => atoms::no_convergence(),
        Error::Vulkan { .. } => atoms::vulkan(),
        Error::Io { .. } => atoms::io(),
        Error::InOp { cause, .. } => kind(cause),
    }
}

fn details<'a>(env: Env<'a>, error: &Error) -> Term<'a> {
    let map = |pairs: &[(Atom, Term<'a>)]| Term::map_from_pairs(env, pairs).unwrap_or_else(|_| Term::map_new(env));
    match error {
        Error::NoDevice { reason } => map(&[(atoms::reason(), reason.encode(env))]),
        Error::Unsupported { dtype, needs, .. } => {
            map(&[(atoms::dtype(), dtype.map(|t| t.name()).encode(env)), (atoms::needs(), needs.encode(env))])
        }
        Error::InvalidProgram { reason, .. } => map(&[(atoms::reason(), reason.encode(env))]),
        Error::InvalidArgument { what, expected, got } => map(&[
            (atoms::what(), what.encode(env)),
            (atoms::expected(), expected.encode(env)),
            (atoms::got(), got.encode(env)),
        ]),
        Error::TooLarge { size_bytes, limit_bytes } => {
            map(&[(atoms::size_bytes(), size_bytes.encode(env)), (atoms::limit_bytes(), limit_bytes.encode(env))])
        }
        Error::OutOfMemory { size_bytes, in_use_bytes, budget_bytes } => map(&[
            (atoms::size_bytes(), size_bytes.encode(env)),
            (atoms::in_use_bytes(), in_use_bytes.encode(env)),
            (atoms::budget_bytes(), budget_bytes.encode(env)),
            (atoms::device(), engines::last_met().encode(env)),
        ]),
        Error::OverBudget { needed_bytes, budget_bytes } => map(&[
            (atoms::needed_bytes(), needed_bytes.encode(env)),
            (atoms::budget_bytes(), budget_bytes.encode(env)),
            (atoms::device(), engines::last_met().encode(env)),
        ]),
        Error::OverLimit { size_bytes, held_bytes, limit_bytes } => map(&[
            (atoms::size_bytes(), size_bytes.encode(env)),
            (atoms::held_bytes(), held_bytes.encode(env)),
            (atoms::limit_bytes(), limit_bytes.encode(env)),
            (atoms::device(), engines::last_met().encode(env)),
        ]),
        Error::BadShader { path, reason } => {
            map(&[(atoms::path(), path.encode(env)), (atoms::reason(), reason.encode(env))])
        }
        Error::TimedOut { limit } => map(&[(atoms::limit_ms(), (limit.as_millis() as u64).encode(env))]),
        Error::NoConvergence { sweeps, .. } => map(&[(atoms::sweeps(), sweeps.encode(env))]),
        Error::Vulkan { call, cause } => map(&[(atoms::call(), call.encode(env)), (atoms::cause(), cause.encode(env))]),
        Error::Io { path, cause } => map(&[(atoms::path(), path.encode(env)), (atoms::cause(), cause.encode(env))]),
        Error::InOp { operands, outs, cause, .. } => {
            let types = |types: &[Type]| types.iter().map(ToString::to_string).collect::<Vec<String>>().encode(env);
            let within = [(atoms::operands(), types(operands)), (atoms::outs(), types(outs))];
            let merged = within.into_iter().try_fold(details(env, cause), |map, (key, value)| map.map_put(key, value));
            merged.unwrap_or_else(|_| Term::map_new(env))
        }
        Error::Released | Error::Stopped | Error::DeviceLost | Error::NeedsCompile => Term::map_new(env),
    }
}

/// What a NIF answers for an error of the engine: `:needs_compile`, or the five-element tuple.
pub fn encode<'a>(env: Env<'a>, op: Term<'a>, error: &Error) -> Term<'a> {
    match error {
        Error::NeedsCompile => atoms::needs_compile().encode(env),
        Error::InOp { op: failed, .. } => {
            // A fused op lists what it does after its name.
            let name = failed.split(' ').next().unwrap_or_default();
            let op = Atom::from_str(env, name).map_or(op, |atom| atom.to_term(env));
            (atoms::error(), kind(error), op, error.to_string(), details(env, error)).encode(env)
        }
        _ => (atoms::error(), kind(error), op, error.to_string(), details(env, error)).encode(env),
    }
}

/// `{:error, kind, message}`, for calls that are no op.
pub fn encode_short<'a>(env: Env<'a>, error: &Error) -> Term<'a> {
    (atoms::error(), kind(error), error.to_string()).encode(env)
}
