//! K-step leapfrog chains. [`log_density`] makes one from the program of a log-density, [`transition`] one of whole
//! transitions of a sampler; both run in either [`Form`]. Here, a supplied shader integrates Hamilton's equations for K
//! steps in one dispatch.
//!
//! The shader binds 0 q, 1 p, 2 extras and, for what every step leaves, 3 q, 4 p, 5 gradient, 6 log density. All are
//! arrays of f32 or all of f64. Two headers of the push data are told apart, see [`Header`].

mod device;
mod form;
mod grouped;
mod header;
pub mod log_density;
mod run;
#[cfg(test)]
mod tests;
pub mod transition;

pub use form::Form;
pub use header::{Header, MAX_D, MAX_K, MAX_PUSH_BYTES, Real, Request};
pub use run::Run;

use crate::nativev::{Call, Failure, Outcome};
use crate::{Buffer, Engine};
use std::ops::Range;
use std::sync::Arc;

/// Bindings 3 to 6: q, p, gradient, log density.
const OUTPUTS: usize = 4;

/// A chain that runs. What it leaves lies in one buffer.
#[derive(Debug)]
pub struct Chain {
    buffer: Arc<Buffer>,
    ranges: [Range<u64>; OUTPUTS],
}

impl Chain {
    /// Byte ranges of q, p, gradient (each `[instance][k][d]`) and log density (`[instance][k]`) in what
    /// [`Chain::download`] gives.
    pub fn ranges(&self) -> &[Range<u64>; OUTPUTS] {
        &self.ranges
    }

    /// Bytes that [`Chain::download`] gives.
    pub fn size_bytes(&self) -> u64 {
        self.buffer.size_bytes()
    }

    /// Waits for the chain and copies its `size_bytes` to `out`.
    ///
    /// # Errors
    /// `Dispatch` when the chain, or anything before it on this device, failed.
    pub fn download(&self, engine: &Engine, out: &mut [u8]) -> Outcome {
        engine.download(&self.buffer, 0, out).map_err(Failure::of_download)
    }
}

/// Checks a chain's arguments and starts it.
///
/// # Errors
/// `BadInput` and `SizeMismatch` as [`Header::of`]; `BadInput` too for push data shorter than the shader's; `SpvRead`
/// for a file that is no well-formed shader; `Dispatch` for one that does not fit; `Upload` when memory is short.
pub fn start(call: &Call<'_>, request: &Request<'_>) -> Outcome<Chain> {
    let header = Header::of(request)?;
    let shader = call.shader()?;
    let element_bytes = request.real.bytes();
    call.check_element_bytes(shader.reflection(), element_bytes)?;
    let local = u64::from(shader.reflection().local_size[0]);
    let (rows, groups) = match header {
        Header::Synth { n_instances, .. } => (n_instances, n_instances),
        Header::Family { n } => (1, n.div_ceil(local)),
    };
    let chain_bytes = request.q.len() as u64 * request.k;
    let logp_bytes = rows * request.k * element_bytes;

    let inputs = [request.q, request.p, request.extras];
    let sizes = inputs.iter().map(|input| input.len() as u64).chain([chain_bytes]);
    call.check_range(sizes, if request.batched { "fewer instances or steps" } else { "fewer elements or steps" })?;
    let align = call.engine.caps().min_storage_buffer_offset_alignment;
    let input_ranges = lay_out(inputs.map(|input| input.len() as u64), align);
    let ranges = lay_out([chain_bytes, chain_bytes, chain_bytes, logp_bytes], align);

    let mut packed = vec![0u8; end(&input_ranges) as usize];
    for (input, range) in inputs.iter().zip(&input_ranges) {
        packed[range.start as usize..range.end as usize].copy_from_slice(input);
    }
    let engine = call.engine;
    let input = crate::nativev::upload(engine, &packed)?;
    // Zeros, so that a shader that leaves out a place shows the same there every time.
    let buffer = crate::nativev::alloc_zeroed(engine, end(&ranges))?;
    let bindings: Vec<_> = input_ranges
        .iter()
        .map(|range| (&input, range))
        .chain(ranges.iter().map(|range| (&buffer, range)))
        .map(|(buffer, range)| (buffer, range.start, range.end - range.start))
        .collect();
    call.run(
        &shader,
        &crate::nativev::Run {
            groups: [groups, 1, 1],
            bindings: &bindings,
            inputs: inputs.len(),
            push: request.push,
            op: None,
        },
    )?;
    Ok(Chain { buffer, ranges })
}

/// Byte ranges one after the other, each beginning at a multiple of `align`.
fn lay_out<const N: usize>(sizes: [u64; N], align: u64) -> [Range<u64>; N] {
    let mut end = 0u64;
    sizes.map(|size| {
        let start = end.next_multiple_of(align);
        end = start + size;
        start..end
    })
}

fn end(ranges: &[Range<u64>]) -> u64 {
    ranges.last().map_or(0, |range| range.end)
}
