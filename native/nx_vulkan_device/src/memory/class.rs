//! Size classes: four per power of two, so that at most a quarter of a block is lost, and 16 of large ones, of which
//! there are fewer to share; all multiples of 256 bytes.

/// Alignment and smallest size of a block. Vulkan never asks for more than 256 bytes of storage-buffer alignment.
pub const GRANULE_BYTES: u64 = 256;

/// The power of two from which on there are 16 classes for each: 1 MiB.
const LARGE_LOG2: u32 = 20;

/// The class that serves `size_bytes`, and the bytes of its blocks.
pub fn class_of(size_bytes: u64) -> (usize, u64) {
    if size_bytes <= 4 * GRANULE_BYTES {
        let granules = size_bytes.div_ceil(GRANULE_BYTES).max(1);
        return (granules as usize - 1, granules * GRANULE_BYTES);
    }
    let log2 = (size_bytes - 1).ilog2();
    let halvings = if log2 < LARGE_LOG2 { 2 } else { 4 };
    let step = 1u64 << (log2 - halvings);
    let steps = size_bytes.div_ceil(step);
    // The class after the last one of the power of two before.
    let first = 4 + 4 * (log2.min(LARGE_LOG2) - 10) + 16 * log2.saturating_sub(LARGE_LOG2);
    (first as usize + (steps - (1 << halvings) - 1) as usize, steps * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_dense_ascending_and_fit() {
        let mut next = 0;
        let mut size = 0;
        while size < 1 << 40 {
            let (class, bytes) = class_of(size + 1);
            assert_eq!(class, next);
            assert!(bytes > size && bytes.is_multiple_of(GRANULE_BYTES));
            assert_eq!(class_of(bytes), (class, bytes), "the class serves its own size");
            let share = if size < 1 << LARGE_LOG2 { 4 } else { 16 };
            assert!(bytes - size <= GRANULE_BYTES.max(bytes / share));
            size = bytes;
            next += 1;
        }
        assert_eq!(class_of(0), (0, GRANULE_BYTES));
    }
}
