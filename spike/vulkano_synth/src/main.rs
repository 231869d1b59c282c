//! The regime chain on a Vulkan device, compared with an f64 leapfrog on the CPU. See README.md.

mod abi;
mod gpu;
mod model;
mod shaders;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vulkano::shader::{ShaderModule, ShaderModuleCreateInfo, spirv};

use abi::{Format, Outputs};
use gpu::{Gpu, Result, Timing};
use model::{D, Inputs, State};

const USAGE: &str = "usage: vulkano_synth [--out FOLDER] [--compare FILE]...   FILE is named regime* or regime_f64*";
/// Dispatches timed per module, after one that compiles.
const TIMED: usize = 101;

fn main() -> Result<()> {
    let mut compare = Vec::new();
    let mut out = PathBuf::from("target");
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--compare", Some(file)) => compare.push(PathBuf::from(file)),
            ("--out", Some(folder)) => out = PathBuf::from(folder),
            _ => return Err(USAGE.into()),
        }
    }
    std::fs::create_dir_all(&out)?;
    let gpu = Gpu::open()?;
    println!("device: {}", gpu.name());
    for format in [Format::F32, Format::F64] {
        run(&gpu, format, &out, &compare)?;
    }
    Ok(())
}

fn run(gpu: &Gpu, format: Format, out: &Path, compare: &[PathBuf]) -> Result<()> {
    let inputs = match format {
        Format::F32 => Inputs::benchmark().rounded_to_f32(),
        Format::F64 => Inputs::benchmark(),
    };
    let chain = abi::chain(&inputs, format);
    let name = format.name();

    let words = spirv::bytes_to_words(committed(format))?;
    // SAFETY: the module is one of this repository's, checked by spirv-val when it was built.
    let committed = unsafe { ShaderModule::new(gpu.device().clone(), ShaderModuleCreateInfo::new(&words))? };
    let in_crate = match format {
        Format::F32 => shaders::f32::load(gpu.device().clone())?,
        Format::F64 => shaders::f64::load(gpu.device().clone())?,
    };

    println!("\n{name}: K = {}, n_obs = {}, d = {D}, eps = {}", inputs.k_steps, inputs.returns.len(), inputs.eps);
    let committed_bytes = measure(gpu, "committed module", &committed, &chain, inputs.k_steps)?;
    let in_crate_bytes = measure(gpu, "vulkano-shaders module", &in_crate, &chain, inputs.k_steps)?;
    println!(
        "  committed and vulkano-shaders outputs: {}",
        describe_difference(&committed_bytes, &in_crate_bytes, format)
    );

    let files =
        [("q", &chain.q), ("p", &chain.p), ("extras", &chain.extras), ("push", &chain.push), ("out", &committed_bytes)];
    for (kind, bytes) in files {
        std::fs::write(out.join(format!("{name}.{kind}")), bytes)?;
    }
    println!("  wrote {}/{name}.{{q,p,extras,push,out}}", out.display());

    let reference = model::leapfrog(&inputs);
    let error = largest_error("committed", &reference, &Outputs::parse(&committed_bytes, inputs.k_steps, format));
    // What the driver makes of a module that forbids it nothing is printed, but not held to the tolerance.
    largest_error("vulkano-shaders", &reference, &Outputs::parse(&in_crate_bytes, inputs.k_steps, format));
    let (logp, _) = model::logp_grad(&inputs.q, &inputs.returns);
    let start = model::energy(&inputs, &inputs.p, logp);
    let last = &reference[reference.len() - 1];
    println!("  energy error of the trajectory (CPU): {:+.4}", model::energy(&inputs, &last.p, last.logp) - start);
    if error > format.tolerance() {
        return Err(
            format!("the device and the CPU disagree: {error:.1e}, tolerance {:.0e}", format.tolerance()).into()
        );
    }

    for file in compare.iter().filter(|file| Format::of_file(file) == Some(format)) {
        let theirs = std::fs::read(file)?;
        println!("  {}: {}", file.display(), describe_difference(&committed_bytes, &theirs, format));
        if theirs != committed_bytes {
            return Err("the file differs from the output of the committed module".into());
        }
    }
    Ok(())
}

/// Dispatches the chain, checks that repetitions give the same bytes, and prints times.
fn measure(gpu: &Gpu, label: &str, module: &Arc<ShaderModule>, chain: &gpu::Chain, k_steps: usize) -> Result<Vec<u8>> {
    let prepared = gpu.prepare(module, chain)?;
    let first = gpu.dispatch(&prepared)?;
    let bytes = gpu.outputs(&prepared)?;
    let timings = (0..TIMED).map(|_| gpu.dispatch(&prepared)).collect::<Result<Vec<Timing>>>()?;
    if gpu.outputs(&prepared)? != bytes {
        return Err("two dispatches with the same inputs gave different bytes".into());
    }
    let wall = median(timings.iter().map(|t| t.wall).collect());
    let on_device = timings.iter().map(|t| t.on_device).collect::<Option<Vec<_>>>().map(median);
    print!("  {label}: first dispatch {first:.1?}, then {wall:.1?}", first = first.wall);
    if let Some(on_device) = on_device {
        print!(", on the device {on_device:.1?} = {:.2?} per leapfrog step", on_device / k_steps as u32);
    }
    println!();
    Ok(bytes)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The largest |ours - reference| / (1 + |reference|) of all numbers of all steps.
fn largest_error(label: &str, reference: &[State], chain: &Outputs) -> f64 {
    let mut worst = Worst::default();
    for (k, state) in reference.iter().enumerate() {
        worst.take(k, chain, state);
    }
    println!(
        "  {label}, largest scaled error over {} steps: q {:.1e}, p {:.1e}, grad {:.1e}, logp {:.1e}",
        reference.len(),
        worst.q,
        worst.p,
        worst.grad,
        worst.logp
    );
    worst.max()
}

#[derive(Default)]
struct Worst {
    q: f64,
    p: f64,
    grad: f64,
    logp: f64,
}

impl Worst {
    fn take(&mut self, k: usize, ours: &Outputs, reference: &State) {
        let row = k * D..(k + 1) * D;
        let worst = |ours: &[f64], reference: &[f64]| {
            let scaled = ours.iter().zip(reference).map(|(a, b)| (a - b).abs() / (1.0 + b.abs()));
            // NaN on either side is a disagreement.
            scaled.fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) })
        };
        self.q = self.q.max(worst(&ours.q[row.clone()], &reference.q));
        self.p = self.p.max(worst(&ours.p[row.clone()], &reference.p));
        self.grad = self.grad.max(worst(&ours.grad[row], &reference.grad));
        self.logp = self.logp.max(worst(&ours.logp[k..=k], &[reference.logp]));
    }

    fn max(&self) -> f64 {
        self.q.max(self.p).max(self.grad).max(self.logp)
    }
}

fn describe_difference(ours: &[u8], theirs: &[u8], format: Format) -> String {
    if ours.len() != theirs.len() {
        return format!("{} bytes, not {}", theirs.len(), ours.len());
    }
    let size = format.element_bytes();
    let count = ours.chunks(size).zip(theirs.chunks(size)).filter(|(a, b)| a != b).count();
    match count {
        0 => "equal byte for byte".to_owned(),
        _ => format!("{count} of {} numbers differ", ours.len() / size),
    }
}

/// The module of this repository, which NativeV runs too.
fn committed(format: Format) -> &'static [u8] {
    match format {
        Format::F32 => include_bytes!("../../../priv/shaders/examples/regime.spv"),
        Format::F64 => include_bytes!("../../../priv/shaders/examples/regime_f64.spv"),
    }
}
