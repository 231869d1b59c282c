//! How a length is split: into lengths that one workgroup transforms, and those into radices.

/// Radices that the template has butterflies for, the smallest first.
const RADICES: [u64; 14] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16];

/// Most radices of a length: those of a word.
const MAX_RADICES: u32 = 8;

/// Passes of a kernel that is made for one length.
const FIXED_PASSES: usize = 4;

/// Longest transform that is summed term by term when it is no product of radices.
pub const MAX_DIRECT: u64 = 64;

/// Longest part of a transform of several launches, of any device, since digits depend on how a length is split: a
/// workgroup then has room for several neighbouring rows.
const MAX_PART: u64 = 1024;

/// Whether a length is a product of radices.
pub fn is_smooth(n: u64) -> bool {
    let mut rest = n;
    for prime in [2, 3, 5, 7, 11, 13] {
        while rest > 0 && rest.is_multiple_of(prime) {
            rest /= prime;
        }
    }
    rest == 1
}

/// The radices of a smooth length that fits in a workgroup, as few as will do and as even as can be: 2^9 is 8 * 8 * 8
/// rather than 16 * 16 * 2. The smallest come first: where 16 comes last, the last pass reads from all banks of shared
/// memory.
pub fn radices(n: u64) -> Vec<u64> {
    (0..=MAX_RADICES).find_map(|count| factors(n, count, 2)).unwrap_or_default()
}

/// `n` as a product of `count` radices from `least` on, of those with the least sum.
fn factors(n: u64, count: u32, least: u64) -> Option<Vec<u64>> {
    if count == 0 {
        return (n == 1).then(Vec::new);
    }
    let fits = |&radix: &u64| radix >= least && n.is_multiple_of(radix) && n >= radix.pow(count);
    let found = RADICES.into_iter().filter(fits).filter_map(|radix| {
        let mut radices = factors(n / radix, count - 1, radix)?;
        radices.insert(0, radix);
        Some(radices)
    });
    found.min_by_key(|radices| radices.iter().sum::<u64>())
}

/// The radices of a length that kernels of one length are made for, 1 in the middle where there are fewer.
pub fn fixed_radices(radices: &[u64]) -> Option<[u32; FIXED_PASSES]> {
    let (&last, before) = radices.split_last()?;
    if before.is_empty() || before.len() >= FIXED_PASSES {
        return None;
    }
    let mut fixed = [1; FIXED_PASSES];
    fixed.iter_mut().zip(before).for_each(|(to, &radix)| *to = radix as u32);
    fixed[FIXED_PASSES - 1] = last as u32;
    Some(fixed)
}

/// Four bits per radix, less one, the first in the lowest.
pub fn radix_word(radices: &[u64]) -> u32 {
    radices.iter().rev().fold(0, |word, radix| word << 4 | (*radix as u32 - 1))
}

/// The lengths of the launches that make up one transform. `capacity` is what one workgroup can hold.
pub fn parts(n: u64, capacity: u64) -> Option<Vec<u64>> {
    if n <= capacity {
        return Some(vec![n]);
    }
    let limit = MAX_PART.min(capacity);
    let mut divisors: Vec<u64> = (2..=limit).filter(|d| n.is_multiple_of(*d)).collect();
    (2..8).find_map(|count| split(n, count, limit, &mut divisors))
}

/// `n` as a product of `count` divisors up to `limit`, as even as can be.
fn split(n: u64, count: u32, limit: u64, divisors: &mut [u64]) -> Option<Vec<u64>> {
    if count == 1 {
        return (n <= limit).then(|| vec![n]);
    }
    let target = (n as f64).powf(1.0 / f64::from(count));
    let off = |d: u64| (d as f64 / target).ln().abs();
    divisors.sort_by(|&a, &b| off(a).total_cmp(&off(b)));
    let candidates: Vec<u64> = divisors.iter().copied().filter(|&d| n.is_multiple_of(d)).collect();
    candidates.into_iter().find_map(|d| {
        if (n / d) as f64 > (limit as f64).powi(count as i32 - 1) {
            return None;
        }
        let mut rest = split(n / d, count - 1, limit, divisors)?;
        rest.insert(0, d);
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radices_multiply_to_the_length() {
        for n in (1..=4096).filter(|&n| is_smooth(n)) {
            let radices = radices(n);
            assert_eq!(radices.iter().product::<u64>(), n);
            assert!(radices.is_sorted() && radices.iter().all(|r| RADICES.contains(r)), "{n}");
            assert_eq!(fixed_radices(&radices).is_some(), n != 3125 && !RADICES.contains(&n) && n > 1, "{n}");
        }
        assert!(is_smooth(1) && is_smooth(13 * 1024) && !is_smooth(0) && !is_smooth(17) && !is_smooth(2 * 97));
        assert_eq!(radices(4096), [16, 16, 16]);
        assert_eq!(radices(512), [8, 8, 8]);
        assert_eq!(radices(1000), [10, 10, 10]);
        assert_eq!(radices(1536), [8, 12, 16]);
        assert_eq!(radix_word(&[4, 6]), 0x5 << 4 | 3);
        assert_eq!(fixed_radices(&[8, 16]), Some([8, 1, 1, 16]));
        assert_eq!(fixed_radices(&[8, 8, 16]), Some([8, 8, 1, 16]));
    }

    #[test]
    fn every_smooth_length_has_parts() {
        let mut lengths: Vec<u64> = (1..200_000).filter(|&n| is_smooth(n)).collect();
        lengths.extend((18..=30).map(|k| 1 << k));
        lengths.extend([13u64.pow(7), 3 * 11u64.pow(8), 3u64.pow(19), 7u64.pow(10)]);
        for n in lengths {
            for capacity in [256, 512, 1024, 2048, 4096] {
                let parts = parts(n, capacity).unwrap();
                assert_eq!(parts.iter().product::<u64>(), n);
                assert!(parts.iter().all(|&p| p <= capacity), "{n} {parts:?}");
            }
        }
        assert_eq!(parts(1 << 20, 4096), Some(vec![1024, 1024]));
        assert_eq!(parts(1 << 26, 4096).unwrap().len(), 3);
    }
}
