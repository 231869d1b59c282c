//! How to open an engine, and what the environment says about it.

use std::path::PathBuf;
use std::time::Duration;

use nx_vulkan_device::device::Validation;
use nx_vulkan_device::kernel::default_cache_dir;
use nx_vulkan_device::memory::HostAccess;
use nx_vulkan_spirv::lower::Lacks;

use crate::kernels::Reach;
use crate::{DType, Error, Result};

/// Compiled kernels from which on idle ones are dropped. One takes 0.5 to 0.9 MB of host memory on lavapipe (Mesa
/// 25.0).
const MAX_PIPELINES: usize = 2048;

/// How to open an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Index, `uuid:<hex>`, UUID digits or a part of the name; `None` for the best device there is.
    pub selector: Option<String>,
    /// Whether the validation layer watches.
    pub validation: Validation,
    /// Where compiled pipelines are kept between runs; `None` for nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Whether optimized programs and generated modules are kept there as well.
    pub keeps_compiled: bool,
    /// With so many compiled kernels, those that nothing holds are dropped, the least recently launched first.
    pub max_pipelines: usize,
    /// Caps the device memory for tensors below what the device has.
    pub memory_limit_bytes: Option<u64>,
    /// For how long memory is kept that no tensor holds, where nothing asks for memory; while something does, as much
    /// as twice what was in use at most in this time stays.
    pub keeps_free: Duration,
    /// For how long a thread waits while the device completes nothing, before that is an error; `None` for ever.
    pub time_limit: Option<Duration>,
    /// How the host reaches device memory.
    pub host_access: HostAccess,
    /// A folder for the SPIR-V of every kernel that is generated, as `<name>-<hash>.spv`; `None` for nowhere.
    pub dump_spirv: Option<PathBuf>,
    /// Whether times of kernels are taken from the start.
    pub profile: Profiling,
    /// Whether the driver is asked what its compiler made of each kernel, which takes it longer to compile.
    pub statistics: bool,
    /// How exact products of f32 are.
    pub precision: Precision,
    /// Whether attention has the bits of its ops one by one, and not a kernel of its own.
    pub exact_attention: bool,
    /// Whether copies of inputs in other layouts and types are kept where inputs come again from run to run while
    /// others change, as the weights of a model do.
    pub keeps_copies: bool,
    /// Types that are lowered although the device has them, to test what happens on one that has not.
    pub lower: Lacks,
    /// How far one launch reaches, less than it can to test what happens to tensors that are larger.
    pub reach: Reach,
}

/// How exact products of f32 are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// All digits of f32: by fma or, large ones on data-center GPUs, by matrix units from three bf16 numbers for each
    /// element.
    #[default]
    Highest,
    /// Large ones of two f16 numbers for each element, where the device has matrix units: more exact on average, and
    /// less so for sums of few terms.
    High,
}

/// Whether an engine takes a profile from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profiling {
    /// Only after [`crate::Engine::start_profile`].
    #[default]
    Off,
    /// From the start.
    On,
    /// From the start, and the table goes to stderr when the engine is dropped.
    Printed,
}

/// A variable of the environment.
struct Variable<T> {
    name: &'static str,
    expected: &'static str,
    parse: fn(&str) -> Option<T>,
}

const MEMORY_LIMIT: Variable<u64> =
    Variable { name: "NX_VULKAN_MEMORY_LIMIT", expected: "a number of bytes", parse: positive };

const KEEP_FREE: Variable<Duration> = Variable {
    name: "NX_VULKAN_KEEP_FREE",
    expected: "a number of milliseconds",
    parse: |number| positive(number).map(Duration::from_millis),
};

/// Long enough for what a user does between two cells of a notebook.
const KEEPS_FREE: Duration = Duration::from_secs(30);

const TIME_LIMIT: Variable<Duration> = Variable {
    name: "NX_VULKAN_TIME_LIMIT",
    expected: "a number of milliseconds",
    parse: |number| positive(number).map(Duration::from_millis),
};

const PIPELINES: Variable<u64> =
    Variable { name: "NX_VULKAN_MAX_PIPELINES", expected: "a number of pipelines", parse: positive };

const HOST_ACCESS: Variable<HostAccess> = Variable {
    name: "NX_VULKAN_HOST_ACCESS",
    expected: "auto, small or never",
    parse: |word| match word {
        "auto" => Some(HostAccess::Auto),
        "small" => Some(HostAccess::Small),
        "never" => Some(HostAccess::Never),
        _ => None,
    },
};

/// What a word switches on or off.
fn switch(word: &str) -> Option<bool> {
    match word {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

const PROFILE: Variable<Profiling> = Variable {
    name: "NX_VULKAN_PROFILE",
    expected: "1 or 0",
    parse: |word| switch(word).map(|is_on| if is_on { Profiling::Printed } else { Profiling::Off }),
};

const STATISTICS: Variable<bool> = Variable { name: "NX_VULKAN_STATISTICS", expected: "1 or 0", parse: switch };

const PRECISION: Variable<Precision> = Variable {
    name: "NX_VULKAN_PRECISION",
    expected: "default, high or highest",
    parse: |word| match word {
        "high" => Some(Precision::High),
        "default" | "highest" => Some(Precision::Highest),
        _ => None,
    },
};

const ATTENTION: Variable<bool> = Variable {
    name: "NX_VULKAN_ATTENTION",
    expected: "fused or exact",
    parse: |word| match word {
        "exact" => Some(true),
        "fused" => Some(false),
        _ => None,
    },
};

const KEEP_COPIES: Variable<bool> = Variable { name: "NX_VULKAN_KEEP_COPIES", expected: "1 or 0", parse: switch };

const KEEP_COMPILED: Variable<bool> = Variable { name: "NX_VULKAN_KEEP_COMPILED", expected: "1 or 0", parse: switch };

const LOWER: Variable<Lacks> = Variable {
    name: "NX_VULKAN_LOWER",
    expected: "all, or types of 8, 16 or 64 bits with commas between them",
    parse: lowered,
};

const REACH: Variable<u64> = Variable { name: "NX_VULKAN_REACH", expected: "a number of bytes", parse: positive };

/// Types to lower, by name.
fn lowered(names: &str) -> Option<Lacks> {
    if names == "all" {
        return Some(Lacks::ALL);
    }
    names.split(',').map(str::trim).try_fold(Lacks::default(), |lacks, name| lacks.without(DType::from_name(name)?))
}

fn positive(number: &str) -> Option<u64> {
    number.parse().ok().filter(|&number| number > 0)
}

fn from_process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl<T> Variable<T> {
    /// What it says; none where it is not set, or empty.
    fn read(&self, value_of: impl Fn(&str) -> Option<String>) -> Result<Option<T>> {
        let Some(got) = value_of(self.name).filter(|value| !value.is_empty()) else { return Ok(None) };
        match (self.parse)(&got) {
            None => Err(Error::InvalidArgument { what: self.name, expected: self.expected.to_string(), got }),
            some => Ok(some),
        }
    }

    /// What the process's variable says; none where that means nothing.
    fn read_if_valid(&self) -> Option<T> {
        self.read(from_process).ok().flatten()
    }
}

impl Options {
    /// What the environment says: `NX_VULKAN_DEVICE` (or, where that is not set, `NXV_DEVICE`, as earlier programs call
    /// it), `NX_VULKAN_VALIDATION`, `NX_VULKAN_CACHE_DIR`, `NX_VULKAN_MEMORY_LIMIT` (bytes), `NX_VULKAN_KEEP_FREE`,
    /// `NX_VULKAN_TIME_LIMIT` (milliseconds), `NX_VULKAN_MAX_PIPELINES`, `NX_VULKAN_HOST_ACCESS` (`small` or `never`),
    /// `NX_VULKAN_DUMP_SPIRV` (a folder), `NX_VULKAN_PROFILE` (`1`: [`Profiling::Printed`]), `NX_VULKAN_STATISTICS` (`1`),
    /// `NX_VULKAN_PRECISION` (`high`), `NX_VULKAN_ATTENTION` (`exact`), `NX_VULKAN_KEEP_COPIES` (`0`),
    /// `NX_VULKAN_KEEP_COMPILED` (`0`), `NX_VULKAN_LOWER` (types, or `all`), `NX_VULKAN_REACH` (bytes).
    ///
    /// What none of them can mean is as if it were not set: see [`Options::check_env`].
    pub fn from_env() -> Options {
        Options {
            selector: ["NX_VULKAN_DEVICE", "NXV_DEVICE"]
                .iter()
                .filter_map(|name| std::env::var(name).ok())
                .find(|selector| !selector.is_empty()),
            validation: Validation::from_env(),
            cache_dir: default_cache_dir(),
            keeps_compiled: KEEP_COMPILED.read_if_valid().unwrap_or(true),
            max_pipelines: PIPELINES.read_if_valid().map_or(MAX_PIPELINES, |most| most as usize),
            memory_limit_bytes: MEMORY_LIMIT.read_if_valid(),
            keeps_free: KEEP_FREE.read_if_valid().unwrap_or(KEEPS_FREE),
            time_limit: TIME_LIMIT.read_if_valid(),
            host_access: HOST_ACCESS.read_if_valid().unwrap_or(HostAccess::Auto),
            dump_spirv: std::env::var_os("NX_VULKAN_DUMP_SPIRV").filter(|v| !v.is_empty()).map(PathBuf::from),
            profile: PROFILE.read_if_valid().unwrap_or_default(),
            statistics: STATISTICS.read_if_valid().unwrap_or_default(),
            precision: PRECISION.read_if_valid().unwrap_or_default(),
            exact_attention: ATTENTION.read_if_valid().unwrap_or_default(),
            keeps_copies: KEEP_COPIES.read_if_valid().unwrap_or(true),
            lower: LOWER.read_if_valid().unwrap_or_default(),
            reach: REACH.read_if_valid().map_or_else(Reach::default, Reach::of_bytes),
        }
    }

    /// The types to lower that `names` says as `NX_VULKAN_LOWER` does.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else.
    pub fn types_to_lower(names: &str) -> Result<Lacks> {
        let wanted = LOWER.read(|_| Some(names.to_string()))?;
        Ok(wanted.unwrap_or_default())
    }

    /// Whether the variables that [`Options::from_env`] reads have values that it knows.
    ///
    /// # Errors
    /// `InvalidArgument` with the first variable that has not.
    pub fn check_env() -> Result<()> {
        check_variables(from_process)
    }
}

fn check_variables(value_of: impl Fn(&str) -> Option<String>) -> Result<()> {
    MEMORY_LIMIT.read(&value_of)?;
    KEEP_FREE.read(&value_of)?;
    TIME_LIMIT.read(&value_of)?;
    PIPELINES.read(&value_of)?;
    HOST_ACCESS.read(&value_of)?;
    PROFILE.read(&value_of)?;
    LOWER.read(&value_of)?;
    REACH.read(&value_of)?;
    STATISTICS.read(&value_of)?;
    ATTENTION.read(&value_of)?;
    KEEP_COPIES.read(&value_of)?;
    KEEP_COMPILED.read(&value_of)?;
    PRECISION.read(&value_of).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_mean_nothing_are_named() {
        let check = |name: &str, value: &str| check_variables(|wanted| (wanted == name).then(|| value.to_string()));
        for (name, value) in [
            ("NX_VULKAN_MEMORY_LIMIT", "2147483648"),
            ("NX_VULKAN_MEMORY_LIMIT", ""),
            ("NX_VULKAN_TIME_LIMIT", "60000"),
            ("NX_VULKAN_PRECISION", "highest"),
            ("NX_VULKAN_PROFILE", "0"),
            ("NX_VULKAN_ATTENTION", "exact"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}={value}");
        }
        for (name, value) in [
            ("NX_VULKAN_MEMORY_LIMIT", "2GiB"),
            ("NX_VULKAN_MEMORY_LIMIT", "0"),
            ("NX_VULKAN_KEEP_FREE", "30 s"),
            ("NX_VULKAN_TIME_LIMIT", "1s"),
            ("NX_VULKAN_MAX_PIPELINES", "-3"),
            ("NX_VULKAN_HOST_ACCESS", "foo"),
            ("NX_VULKAN_PROFILE", "yes"),
            ("NX_VULKAN_STATISTICS", "all"),
            ("NX_VULKAN_PRECISION", "bogus"),
            ("NX_VULKAN_ATTENTION", "1"),
            ("NX_VULKAN_KEEP_COPIES", "never"),
            ("NX_VULKAN_KEEP_COMPILED", "no"),
        ] {
            let error = check(name, value).expect_err(name).to_string();
            assert!(error.contains(name) && error.ends_with(&format!("got {value}")), "{error}");
        }
    }
}
