//! Profiles: how long kernels took on the device, and how near that is to what the device can do.

mod limits;

pub use nx_vulkan_device::profile::{Launch, Limits, Profile, ProfileRow};

use crate::{Engine, Error, Result};

impl Engine {
    /// Takes times of every kernel, fill and copy that is recorded from now on, in addition to those taken before. They
    /// don't overlap while times are taken: a barrier stands before each.
    ///
    /// # Errors
    /// `Unsupported` where the device's queue has no timestamps.
    ///
    /// # Examples
    /// ```
    /// use nx_vulkan_engine::program::Builder;
    /// use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor};
    ///
    /// # fn main() -> nx_vulkan_engine::Result<()> {
    /// # if nx_vulkan_engine::is_missing_for_examples()? { return Ok(()) }
    /// let engine = Engine::open(None)?;
    /// let b = Builder::new();
    /// let y = b.exp(b.input(DType::F32, &[1000]));
    /// let executable = Executable::compile(&engine, b.finish(&[y])?)?;
    /// let x = [Tensor::from_slice(&engine, &[1000], &[0.5f32; 1000])?];
    ///
    /// engine.start_profile()?;
    /// for _ in 0..3 {
    ///     executable.run(&x, Compile::Allowed)?;
    /// }
    /// let profile = engine.profile()?;
    /// engine.stop_profile()?;
    /// let exp = profile.rows.iter().find(|row| row.kernel.starts_with("map.exp.f32")).unwrap();
    /// assert_eq!((exp.calls, exp.read_bytes, exp.flops), (3, 12_000, Some(3000)));
    /// println!("{profile}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_profile(&self) -> Result<()> {
        if self.caps().timestamp_valid_bits == 0 {
            let needs = "timestamps on its queue (timestampValidBits is 0)".to_string();
            return Err(Error::Unsupported { op: "profile".to_string(), dtype: None, needs });
        }
        self.stream().set_profiling(true).map(|_| ())
    }

    /// Takes no more times. What was taken stays in the profile.
    ///
    /// # Errors
    /// The sticky error of a failed submission.
    pub fn stop_profile(&self) -> Result<()> {
        self.stream().set_profiling(false).map(|_| ())
    }

    /// The times taken so far. Waits for the device.
    ///
    /// # Errors
    /// The sticky error of a failed submission.
    pub fn profile(&self) -> Result<Profile> {
        self.stream().collect_profile()?;
        Ok(self.stream().profiler().profile(self.info()))
    }

    /// When each of the launches ran whose times were taken, of the last 65,536. Waits for the device.
    ///
    /// # Errors
    /// The sticky error of a failed submission.
    pub fn launches(&self) -> Result<Vec<Launch>> {
        self.stream().collect_profile()?;
        Ok(self.stream().profiler().launches())
    }

    /// Forgets the times taken so far. Waits for the device.
    ///
    /// # Errors
    /// The sticky error of a failed submission.
    pub fn reset_profile(&self) -> Result<()> {
        self.stream().collect_profile()?;
        self.stream().profiler().reset();
        Ok(())
    }

    /// Says what the device can do, for the shares in profiles: from its data sheet, say.
    pub fn set_limits(&self, limits: Limits) {
        self.stream().profiler().set_limits(limits);
    }
}
