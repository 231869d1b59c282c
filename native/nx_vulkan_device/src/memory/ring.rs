//! A ring of host-visible memory: space is handed out in order and comes back when the submissions that read it are
//! complete.

use std::collections::VecDeque;

/// Serial of a reservation that no submission carries yet.
const RESERVED: u64 = u64::MAX;

/// Names a reservation until it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    id: u64,
    pub offset: u64,
}

#[derive(Debug)]
struct Entry {
    start: u64,
    serial: u64,
}

/// Offsets only: the memory itself is the owner's.
#[derive(Debug)]
pub struct Ring {
    size_bytes: u64,
    head: u64,
    first_id: u64,
    entries: VecDeque<Entry>,
}

impl Ring {
    /// A ring of so many bytes.
    pub fn new(size_bytes: u64) -> Ring {
        Ring { size_bytes, head: 0, first_id: 0, entries: VecDeque::new() }
    }

    /// Space for `len` bytes at a multiple of `align`, or `None` until more submissions complete.
    pub fn reserve(&mut self, len: u64, align: u64, completed: u64) -> Option<Reservation> {
        while let Some(front) = self.entries.front()
            && front.serial <= completed
        {
            self.entries.pop_front();
            self.first_id += 1;
        }
        let start = self.place(len, align)?;
        self.head = start + len;
        let id = self.first_id + self.entries.len() as u64;
        self.entries.push_back(Entry { start, serial: RESERVED });
        Some(Reservation { id, offset: start })
    }

    /// Says which submission reads the reserved space; 0 gives it back unused.
    pub fn commit(&mut self, reservation: Reservation, serial: u64) {
        let index = usize::try_from(reservation.id.wrapping_sub(self.first_id));
        if let Some(entry) = index.ok().and_then(|i| self.entries.get_mut(i)) {
            entry.serial = serial;
        }
    }

    /// The serial to wait for before more space can come free, if a submission holds the oldest.
    pub fn oldest(&self) -> Option<u64> {
        self.entries.front().map(|e| e.serial).filter(|&s| s != RESERVED)
    }

    fn place(&self, len: u64, align: u64) -> Option<u64> {
        let Some(tail) = self.entries.front().map(|e| e.start) else {
            return (len <= self.size_bytes).then_some(0);
        };
        let next = self.head.next_multiple_of(align);
        // An occupied ring never fills to the last byte: head == tail would look the same as empty.
        if self.head > tail {
            if next + len <= self.size_bytes {
                return Some(next);
            }
            return (len < tail).then_some(0);
        }
        (next + len < tail).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_in_order_and_wraps_when_submissions_complete() {
        let mut ring = Ring::new(100);
        let a = ring.reserve(40, 4, 0).unwrap();
        let b = ring.reserve(40, 4, 0).unwrap();
        assert_eq!((a.offset, b.offset), (0, 40));
        assert_eq!(ring.reserve(40, 4, 0), None);
        assert_eq!(ring.oldest(), None, "not committed yet");
        ring.commit(b, 2);
        assert_eq!(ring.reserve(30, 4, 2), None, "the oldest still holds its space");
        ring.commit(a, 1);
        assert_eq!(ring.oldest(), Some(1));
        let c = ring.reserve(30, 4, 1).unwrap();
        assert_eq!(c.offset, 0);
        assert_eq!(ring.reserve(20, 4, 1), None);
        ring.commit(c, 3);
        let d = ring.reserve(100, 4, 3).unwrap();
        assert_eq!(d.offset, 0);
        assert_eq!(ring.reserve(1, 4, 3), None);
        ring.commit(d, 0);
        assert!(ring.reserve(1, 4, 3).is_some());
    }

    #[test]
    fn live_reservations_never_overlap() {
        let mut ring = Ring::new(1000);
        let mut live: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let mut state = 7u64;
        let mut completed = 0;
        for serial in 1..20_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
            let len = (state >> 33) % 300 + 1;
            let r = loop {
                if let Some(r) = ring.reserve(len, 16, completed) {
                    break r;
                }
                completed = live.pop_front().unwrap().2;
            };
            ring.commit(r, serial);
            live.retain(|l| l.2 > completed);
            assert!(r.offset.is_multiple_of(16) && r.offset + len <= 1000);
            for &(start, end, _) in &live {
                assert!(r.offset + len <= start || r.offset >= end);
            }
            live.push_back((r.offset, r.offset + len, serial));
        }
    }
}
