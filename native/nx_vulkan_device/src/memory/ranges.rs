//! The free space of one region: ranges that grow together again, each with the hazards of what last lived there.

use std::collections::{BTreeMap, BTreeSet};

use super::block::Hazard;

#[derive(Debug, Default)]
pub struct FreeRanges {
    by_offset: BTreeMap<u64, (u64, Hazard)>,
    by_size: BTreeSet<(u64, u64)>,
}

impl FreeRanges {
    pub fn whole(size_bytes: u64) -> FreeRanges {
        let mut ranges = FreeRanges::default();
        ranges.give(0, size_bytes, Hazard::default());
        ranges
    }

    /// The start of `size_bytes` cut from the smallest range that holds them.
    pub fn take(&mut self, size_bytes: u64) -> Option<(u64, Hazard)> {
        let &(len, offset) = self.by_size.range((size_bytes, 0)..).next()?;
        self.by_size.remove(&(len, offset));
        let (_, hazard) = self.by_offset.remove(&offset)?;
        if len > size_bytes {
            self.insert(offset + size_bytes, len - size_bytes, hazard);
        }
        Some((offset, hazard))
    }

    /// Returns a range, joining it with its free neighbours.
    pub fn give(&mut self, mut offset: u64, mut len: u64, mut hazard: Hazard) {
        if let Some((&before, &(before_len, before_hazard))) = self.by_offset.range(..offset).next_back()
            && before + before_len == offset
        {
            self.remove(before, before_len);
            offset = before;
            len += before_len;
            hazard = hazard.max(before_hazard);
        }
        if let Some(&(after_len, after_hazard)) = self.by_offset.get(&(offset + len)) {
            self.remove(offset + len, after_len);
            len += after_len;
            hazard = hazard.max(after_hazard);
        }
        self.insert(offset, len, hazard);
    }

    /// The hazard of the one range that covers all of `size_bytes`, when nothing is in use.
    pub fn entirely_free(&self, size_bytes: u64) -> Option<Hazard> {
        match self.by_offset.get(&0) {
            Some(&(len, hazard)) if len == size_bytes => Some(hazard),
            _ => None,
        }
    }

    fn insert(&mut self, offset: u64, len: u64, hazard: Hazard) {
        self.by_offset.insert(offset, (len, hazard));
        self.by_size.insert((len, offset));
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(len, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(serial: u64) -> Hazard {
        Hazard { use_serial: serial, ..Hazard::default() }
    }

    #[test]
    fn takes_best_fit_and_joins_neighbours() {
        let mut r = FreeRanges::whole(1000);
        let (a, _) = r.take(100).unwrap();
        let (b, _) = r.take(200).unwrap();
        let (c, _) = r.take(300).unwrap();
        assert_eq!((a, b, c), (0, 100, 300));
        r.give(a, 100, used(1));
        r.give(c, 300, used(3));
        assert_eq!(r.take(100).map(|x| x.0), Some(0), "the tightest range is used");
        r.give(0, 100, used(1));
        assert_eq!(r.entirely_free(1000), None);
        r.give(b, 200, used(2));
        assert_eq!(r.entirely_free(1000), Some(used(3)));
        assert_eq!(r.take(1001), None);
        assert_eq!(r.take(1000), Some((0, used(3))));
        assert_eq!(r.take(1), None);
    }
}
