//! The head of a chain's push data, and the sizes that follow from it.

use crate::nativev::{Failure, Outcome};

/// Steps of one chain, at most.
pub const MAX_K: u64 = 4096;
/// Dimensions of one instance, at most: a shader holds them in one workgroup.
pub const MAX_D: u64 = 256;
/// Push data of one call: what every Vulkan device takes.
pub const MAX_PUSH_BYTES: usize = 128;

/// The element type of every buffer and of the floats in the push data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Real {
    /// Of 32 bits.
    F32,
    /// Of 64 bits.
    F64,
}

impl Real {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Real::F32 => 4,
            Real::F64 => 8,
        }
    }

    /// `{k, n_obs, d, n_instances: u32, eps: real}`.
    fn synth_header_bytes(self) -> usize {
        16 + self.bytes() as usize
    }

    /// `{n, k: u32, eps: real}`.
    fn family_header_bytes(self) -> usize {
        8 + self.bytes() as usize
    }
}

/// The arguments of a chain.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What its numbers are.
    pub real: Real,
    /// The header counts instances, which lie one after the other in every buffer.
    pub batched: bool,
    /// The positions to begin at.
    pub q: &'a [u8],
    /// The momenta to begin with.
    pub p: &'a [u8],
    /// What the shader takes beside them.
    pub extras: &'a [u8],
    /// Push data, which begins with the header.
    pub push: &'a [u8],
    /// Steps.
    pub k: u64,
}

/// What the push data begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// `{k, n_obs, d, n_instances: u32; eps}`: one workgroup integrates one instance of d dimensions; extras are n_obs
    /// observations, then the diagonal of the inverse mass matrix. Not batched, the fourth word is not looked at.
    Synth {
        /// Observations of an instance.
        n_obs: u64,
        /// Dimensions of an instance.
        d: u64,
        /// Instances.
        n_instances: u64,
    },
    /// `{n, k: u32; eps}`: one workgroup for every 256 of n independent elements; extras are the diagonal of the
    /// inverse mass matrix.
    Family {
        /// Elements.
        n: u64,
    },
}

impl Header {
    /// Reads and checks the header. Which of the two it is, the sizes of the buffers tell: a family's extras are as
    /// long as q, which in a synth call with the same words would mean no observations at k of them.
    ///
    /// # Errors
    /// `BadInput`: k outside of 1 to 4096 or not the header's; push data empty, longer than 128 bytes or shorter than a
    /// header; d above 256; no instances. `SizeMismatch`: d is 0, or a buffer's size is not what the header says.
    pub fn of(request: &Request<'_>) -> Outcome<Header> {
        let &Request { real, batched, q, p, extras, push, k } = request;
        if !(1..=MAX_K).contains(&k) || push.is_empty() || push.len() > MAX_PUSH_BYTES {
            return Err(Failure::BadInput);
        }
        if q.len() != p.len() {
            return Err(Failure::SizeMismatch);
        }
        let word = |index: usize| {
            let bytes = push.get(4 * index..4 * index + 4)?;
            Some(u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
        };
        let is_size = |bytes: &[u8], count: u64| bytes.len() as u64 == count * real.bytes();
        if !batched
            && push.len() >= real.family_header_bytes()
            && let (Some(n), Some(header_k)) = (word(0), word(1))
            && (n > 0 && is_size(q, n) && is_size(extras, n) && header_k == k)
        {
            return Ok(Header::Family { n });
        }
        if push.len() < real.synth_header_bytes() {
            return Err(Failure::BadInput);
        }
        let [Some(header_k), Some(n_obs), Some(d), Some(instances)] = [0, 1, 2, 3].map(word) else {
            return Err(Failure::BadInput);
        };
        let n_instances = if batched { instances } else { 1 };
        if header_k != k || n_instances == 0 || d > MAX_D {
            return Err(Failure::BadInput);
        }
        // At most 2^32 instances of 2^32 + 256 elements of 8 bytes would overflow; no slice is as long.
        let extras_count = n_instances.checked_mul(n_obs + d).filter(|count| *count <= u64::MAX / 8);
        if d == 0 || !is_size(q, n_instances * d) || !extras_count.is_some_and(|count| is_size(extras, count)) {
            return Err(Failure::SizeMismatch);
        }
        Ok(Header::Synth { n_obs, d, n_instances })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(words: [u32; 4], real: Real) -> Vec<u8> {
        let mut push: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        match real {
            Real::F32 => push.extend(0.1f32.to_le_bytes()),
            Real::F64 => push.extend(0.1f64.to_le_bytes()),
        }
        push
    }

    fn header(real: Real, batched: bool, counts: [usize; 3], push: &[u8], k: u64) -> Outcome<Header> {
        let [q, p, extras] = counts.map(|count| vec![0u8; count * real.bytes() as usize]);
        Header::of(&Request { real, batched, q: &q, p: &p, extras: &extras, push, k })
    }

    #[test]
    fn single_and_batched_synth_headers() {
        for real in [Real::F32, Real::F64] {
            let single = header(real, false, [8, 8, 208], &push([32, 200, 8, 77], real), 32);
            assert_eq!(single, Ok(Header::Synth { n_obs: 200, d: 8, n_instances: 1 }));
            let batched = header(real, true, [24, 24, 624], &push([32, 200, 8, 3], real), 32);
            assert_eq!(batched, Ok(Header::Synth { n_obs: 200, d: 8, n_instances: 3 }));
            let no_observations = header(real, false, [8, 8, 8], &push([4096, 0, 8, 0], real), 4096);
            assert_eq!(no_observations, Ok(Header::Synth { n_obs: 0, d: 8, n_instances: 1 }));
        }
    }

    #[test]
    fn family_headers_by_the_sizes_of_the_buffers() {
        let words =
            |n: u32, k: u32| [n.to_le_bytes(), k.to_le_bytes(), 0.1f32.to_le_bytes(), 1f32.to_le_bytes()].concat();
        assert_eq!(header(Real::F32, false, [300, 300, 300], &words(300, 5), 5), Ok(Header::Family { n: 300 }));
        assert_eq!(header(Real::F32, false, [300, 300, 299], &words(300, 5), 5), Err(Failure::BadInput));
        assert_eq!(header(Real::F32, false, [300, 300, 300], &words(300, 6), 5), Err(Failure::BadInput));
        assert_eq!(header(Real::F32, true, [300, 300, 300], &words(300, 5), 5), Err(Failure::BadInput));
        // n = k = d = 8 with as many observations is a synth header still.
        let synth = header(Real::F32, false, [8, 8, 16], &push([8, 8, 8, 0], Real::F32), 8);
        assert_eq!(synth, Ok(Header::Synth { n_obs: 8, d: 8, n_instances: 1 }));
    }

    #[test]
    fn what_is_no_number_of_the_function_is_bad_input() {
        let good = push([4, 2, 3, 2], Real::F64);
        let of = |batched, push: &[u8], k| header(Real::F64, batched, [6, 6, 10], push, k);
        assert!(of(true, &good, 4).is_ok());
        for k in [0, 3, 5, MAX_K + 1, u64::MAX] {
            assert_eq!(of(true, &good, k), Err(Failure::BadInput), "k = {k}");
        }
        let long = [good.clone(), vec![0; 105]].concat();
        assert_eq!(of(true, &long, 4), Err(Failure::BadInput));
        assert!(of(true, &long[..128], 4).is_ok());
        for len in 0..24 {
            assert_eq!(of(true, &good[..len], 4), Err(Failure::BadInput), "{len} bytes");
        }
        assert_eq!(of(true, &push([4, 2, 3, 0], Real::F64), 4), Err(Failure::BadInput));
        assert_eq!(of(true, &push([4, 2, 257, 2], Real::F64), 4), Err(Failure::BadInput));
        assert_eq!(of(true, &push([4097, 2, 3, 2], Real::F64), 4097), Err(Failure::BadInput));
    }

    #[test]
    fn buffers_that_are_not_what_the_header_says_mismatch() {
        for (words, counts) in [
            ([4, 2, 3, 2], [6, 5, 10]),
            ([4, 2, 3, 2], [5, 5, 10]),
            ([4, 2, 3, 2], [6, 6, 11]),
            ([4, 2, 0, 2], [0, 0, 4]),
            ([4, 2, 4, 2], [6, 6, 10]),
            ([4, u32::MAX, 3, 2], [6, 6, 10]),
            ([4, u32::MAX, 256, u32::MAX], [6, 6, 10]),
        ] {
            let found = header(Real::F64, true, counts, &push(words, Real::F64), 4);
            assert_eq!(found, Err(Failure::SizeMismatch), "{words:?} {counts:?}");
        }
        let uneven = Request {
            real: Real::F32,
            batched: false,
            q: &[0; 13],
            p: &[0; 13],
            extras: &[0; 20],
            push: &push([4, 2, 3, 0], Real::F32),
            k: 4,
        };
        assert_eq!(Header::of(&uneven), Err(Failure::SizeMismatch));
    }
}
