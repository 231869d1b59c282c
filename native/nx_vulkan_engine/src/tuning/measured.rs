//! What is measured on a device.

use serde::{Deserialize, Serialize};

/// What was measured on a device, whose driver may do better or worse tomorrow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Bytes that copies read and write per second.
    pub bytes_per_second: f64,
    /// Operations per second of a kernel of nothing but fma in f32.
    pub flops_per_second: f64,
    /// Nanoseconds of a dispatch that depends on no other.
    pub dispatch_ns: f64,
    /// Nanoseconds of a dispatch that waits for the one before.
    pub wait_ns: f64,
    /// Multiplications per second of a square product of f32.
    pub f32_products_per_second: f64,
    /// Multiplications per second of a square product of f64, where the device has it.
    pub f64_products_per_second: Option<f64>,
    /// Multiplications per second of a square product of f16 on matrix units, where kernels for them run.
    pub unit_products_per_second: Option<f64>,
}

impl Calibration {
    /// Whether these can be numbers of a device.
    pub(super) fn is_plausible(&self) -> bool {
        let within = |x: f64, least: f64, most: f64| (least..=most).contains(&x);
        let products =
            [Some(self.f32_products_per_second), self.f64_products_per_second, self.unit_products_per_second];
        within(self.bytes_per_second, 1e7, 1e15)
            && within(self.flops_per_second, 1e7, 1e17)
            && within(self.dispatch_ns, 1.0, 1e9)
            && within(self.wait_ns, 1.0, 1e9)
            && products.iter().flatten().all(|&rate| within(rate, 1e6, 1e17))
    }

    /// The calibration with four digits of each number, more than any of them has.
    pub(super) fn rounded(self) -> Calibration {
        let round = |x: f64| format!("{x:.3e}").parse().unwrap_or(x);
        Calibration {
            bytes_per_second: round(self.bytes_per_second),
            flops_per_second: round(self.flops_per_second),
            dispatch_ns: round(self.dispatch_ns),
            wait_ns: round(self.wait_ns),
            f32_products_per_second: round(self.f32_products_per_second),
            f64_products_per_second: self.f64_products_per_second.map(round),
            unit_products_per_second: self.unit_products_per_second.map(round),
        }
    }
}
