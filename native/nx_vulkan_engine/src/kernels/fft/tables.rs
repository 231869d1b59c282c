//! Roots of unity and what is made of them, computed once per length on the host in f64.

use std::collections::HashMap;
use std::f64::consts::FRAC_PI_2;
use std::sync::{Arc, Mutex};

use nx_vulkan_device::memory::Buffer;

use super::plan;
use crate::{CType, Compile, Engine, Error, Result};

/// Bytes of tables kept on the device before the cache starts over.
const CAPACITY_BYTES: u64 = 256 << 20;

/// Longest table that a call which may not compile makes itself: 100 us of the host's time.
const MAX_QUICK: u64 = 4096;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// For one workgroup's transform: the roots of its passes, then the order of its results.
    Passes(u64),
    /// All roots of a length.
    Roots(u64),
    /// Between launches: 2^shift roots of a length, then their powers by 2^shift.
    Twofold(u64),
    /// Roots of twice the length with squared exponents.
    Chirp(u64),
    /// The transform, of the convolution's length, of the chirp's conjugate.
    Spectrum(u64),
}

/// Tables of one device.
#[derive(Debug, Default)]
struct TableCache {
    tables: Mutex<HashMap<(Content, CType), Arc<Buffer>>>,
}

impl TableCache {
    fn get(&self, content: Content, ctype: CType) -> Option<Arc<Buffer>> {
        self.tables.lock().unwrap_or_else(|e| e.into_inner()).get(&(content, ctype)).cloned()
    }

    fn insert(&self, content: Content, ctype: CType, buffer: &Arc<Buffer>) {
        let mut tables = self.tables.lock().unwrap_or_else(|e| e.into_inner());
        let held: u64 = tables.values().map(|b| b.size_bytes()).sum();
        if held + buffer.size_bytes() > CAPACITY_BYTES {
            tables.clear();
        }
        if buffer.size_bytes() <= CAPACITY_BYTES {
            tables.insert((content, ctype), Arc::clone(buffer));
        }
    }
}

/// Roots in the first part of a twofold table.
pub fn twofold_shift(n: u64) -> u32 {
    (64 - n.leading_zeros()).div_ceil(2)
}

/// Entries of a passes table before the order.
pub fn pass_roots(n: u64) -> u64 {
    // The passes have n - n / r, n / r - n / (r s), and so on.
    n - 1
}

/// The table, from the cache or made now.
///
/// # Errors
/// `NeedsCompile` when it would take long to make and `compile` refuses that.
pub fn table(engine: &Engine, content: Content, ctype: CType, compile: Compile) -> Result<Arc<Buffer>> {
    let cache = engine.state::<TableCache>();
    let known = cache.get(content, ctype);
    if let Some(buffer) = known.filter(|buffer| engine.stream().check_contents([&**buffer].into_iter()).is_ok()) {
        return Ok(buffer);
    }
    let size = match content {
        Content::Passes(n) | Content::Roots(n) | Content::Chirp(n) | Content::Spectrum(n) => n,
        Content::Twofold(n) => 2 << twofold_shift(n),
    };
    if compile == Compile::Refused && size > MAX_QUICK {
        return Err(Error::NeedsCompile);
    }
    let mut bytes = Vec::new();
    let mut put = |(re, im): (f64, f64)| match ctype {
        CType::C128 => bytes.extend([re, im].iter().flat_map(|x| x.to_ne_bytes())),
        _ => bytes.extend([re as f32, im as f32].iter().flat_map(|x| x.to_ne_bytes())),
    };
    match content {
        Content::Passes(n) => {
            let mut step = n;
            for radix in plan::radices(n) {
                let block = step;
                step /= radix;
                (1..radix).for_each(|k| (0..step).for_each(|offset| put(root(offset * k, block))));
            }
            bytes.extend(order(n).iter().flat_map(|x| x.to_ne_bytes()));
        }
        Content::Roots(n) => (0..n).for_each(|k| put(root(k, n))),
        Content::Twofold(n) => {
            let shift = twofold_shift(n);
            (0..1 << shift).for_each(|k| put(root(k, n)));
            (0..=n >> shift).for_each(|k| put(root(k << shift, n)));
        }
        Content::Chirp(n) => (0..n).for_each(|k| put(chirp(k, n))),
        Content::Spectrum(n) => {
            let m = convolution(n);
            let conjugate = |(re, im): (f64, f64)| (re, -im);
            (0..n).for_each(|k| put(conjugate(chirp(k, n))));
            (n..m + 1 - n).for_each(|_| put((0.0, 0.0)));
            (1..n).rev().for_each(|k| put(conjugate(chirp(k, n))));
        }
    }
    let engine = engine.uncaptured();
    let mut buffer = engine.alloc(bytes.len() as u64)?;
    engine.upload(&buffer, 0, &bytes)?;
    if let Content::Spectrum(n) = content {
        buffer = super::launch::spectrum(&engine, &buffer, convolution(n), ctype, compile)?;
    }
    cache.insert(content, ctype, &buffer);
    Ok(buffer)
}

/// Length of the cyclic convolution that a transform of any length `n` becomes: the shortest that is a radix from 8 on
/// times a power of two, and takes no more passes than the power of two beyond it.
pub fn convolution(n: u64) -> u64 {
    let least = 2 * n - 1;
    let unit = least.next_power_of_two() / 16;
    [9, 10, 12, 15].map(|radix| radix * unit).into_iter().find(|&m| m >= least).unwrap_or(16 * unit)
}

/// exp(-i pi k^2 / n)
fn chirp(k: u64, n: u64) -> (f64, f64) {
    root((u128::from(k) * u128::from(k) % u128::from(2 * n)) as u64, 2 * n)
}

/// exp(-2 pi i k / n), exact at multiples of a quarter turn, and symmetric.
pub fn root(k: u64, n: u64) -> (f64, f64) {
    let (k, n) = (u128::from(k), u128::from(n));
    let quarters = 4 * (k % n);
    let (quadrant, rest) = (quarters / n, quarters % n);
    let (cos, sin) = if 2 * rest <= n {
        cos_sin(rest as f64, n as f64)
    } else {
        let (cos, sin) = cos_sin((n - rest) as f64, n as f64);
        (sin, cos)
    };
    match quadrant {
        0 => (cos, -sin),
        1 => (-sin, -cos),
        2 => (-cos, sin),
        _ => (sin, cos),
    }
}

/// Cosine and sine of `part / whole` of a right angle, which is at most half of it, with the angle to twice f64's
/// digits.
fn cos_sin(part: f64, whole: f64) -> (f64, f64) {
    /// What FRAC_PI_2 lacks.
    const FRAC_PI_2_LOW: f64 = 6.123_233_995_736_766e-17;
    let share = part / whole;
    let share_low = (-share).mul_add(whole, part) / whole;
    let angle = share * FRAC_PI_2;
    let low = share.mul_add(FRAC_PI_2, -angle) + share * FRAC_PI_2_LOW + share_low * FRAC_PI_2;
    let (sin, cos) = angle.sin_cos();
    (cos - sin * low, sin + cos * low)
}

/// Where result k of the in-place passes lies: the digits of k, least significant first, count the largest steps.
fn order(n: u64) -> Vec<u32> {
    let radices = plan::radices(n);
    (0..n)
        .map(|k| {
            let (mut rest, mut step, mut at) = (k, n, 0);
            for radix in &radices {
                step /= radix;
                at += rest % radix * step;
                rest /= radix;
            }
            at as u32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_exact_where_they_can_be() {
        for n in [4u64, 8, 12, 20, 1 << 20, 4 * 999_983] {
            assert_eq!(root(0, n), (1.0, 0.0));
            assert_eq!(root(n / 4, n), (0.0, -1.0));
            assert_eq!(root(n / 2, n), (-1.0, 0.0));
            assert_eq!(root(3 * n / 4, n), (0.0, 1.0));
        }
        for n in [3u64, 7, 12, 100, 1013] {
            for k in 1..n {
                let ((a, b), (c, d)) = (root(k, n), root(n - k, n));
                assert_eq!((a, b), (c, -d));
                let angle = -std::f64::consts::TAU * k as f64 / n as f64;
                // The angle itself is rounded three times.
                let bound = f64::EPSILON * (1.0 + 1.5 * angle.abs());
                assert!((a - angle.cos()).hypot(b - angle.sin()) < bound, "{k} of {n}");
            }
        }
        // cos(pi / 3) and cos(pi / 4)
        assert_eq!(root(1, 6).0, 0.5);
        assert_eq!(root(1, 8).0, std::f64::consts::FRAC_1_SQRT_2);
    }

    #[test]
    fn orders_are_permutations() {
        for n in [1u64, 2, 24, 30, 1001, 4096] {
            let mut order = order(n);
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..n as u32));
        }
    }
}
