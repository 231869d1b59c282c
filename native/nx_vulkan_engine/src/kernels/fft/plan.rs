//! How a length is split: into lengths that one workgroup transforms, and those into radices.

/// Radices that the template has butterflies for, apart from 2, 4, 8 and 16.
const ODD_RADICES: [u64; 5] = [3, 5, 7, 11, 13];

/// Longest transform that is summed term by term when it is no product of radices.
pub const MAX_DIRECT: u64 = 64;

/// Longest part of a transform of several launches: neighbouring rows in one workgroup then fill a memory sector (32
/// bytes).
const MAX_PART: u64 = 1024;

/// Whether a length is a product of radices.
pub fn is_smooth(n: u64) -> bool {
    let mut rest = n >> n.trailing_zeros();
    for radix in ODD_RADICES {
        while rest.is_multiple_of(radix) {
            rest /= radix;
        }
    }
    rest == 1
}

/// The radices of a smooth length, the largest powers of two first.
pub fn radices(n: u64) -> Vec<u64> {
    let twos = n.trailing_zeros();
    let passes = twos.div_ceil(4);
    // As even as can be: 2^9 is 8 * 8 * 8 rather than 16 * 16 * 2.
    let mut radices: Vec<u64> = (0..passes).map(|i| 1 << (twos / passes + u32::from(i < twos % passes))).collect();
    let mut rest = n >> twos;
    for radix in ODD_RADICES {
        while rest.is_multiple_of(radix) {
            radices.push(radix);
            rest /= radix;
        }
    }
    radices
}

/// The radices of a length that kernels of one length are made for, 1 in the middle where there are two: powers of two
/// from 64 on.
pub fn fixed_radices(n: u64) -> Option<[u32; 3]> {
    match radices(n)[..] {
        [first @ (8 | 16), last @ (8 | 16)] => Some([first, 1, last].map(|radix| radix as u32)),
        [first @ (8 | 16), middle @ (8 | 16), last @ (8 | 16)] => Some([first, middle, last].map(|radix| radix as u32)),
        _ => None,
    }
}

/// Four bits per radix, less one, the first in the lowest.
pub fn radix_word(n: u64) -> u32 {
    radices(n).iter().rev().fold(0, |word, radix| word << 4 | (*radix as u32 - 1))
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
            assert!(radices.len() <= 8 && radices.iter().all(|r| *r <= 16), "{n}");
        }
        assert!(is_smooth(1) && is_smooth(13 * 1024) && !is_smooth(17) && !is_smooth(2 * 97));
        assert_eq!(radices(4096), [16, 16, 16]);
        assert_eq!(radices(512), [8, 8, 8]);
        assert_eq!(radix_word(24), 0x2 << 4 | 7);
        let fixed = (1..=4096).filter(|&n| is_smooth(n) && fixed_radices(n).is_some());
        assert_eq!(fixed.collect::<Vec<_>>(), [64, 128, 256, 512, 1024, 2048, 4096]);
        assert_eq!(fixed_radices(128), Some([16, 1, 8]));
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
