//! Where a workgroup keeps values that more than one invocation reads: shared memory, and a buffer where that is full.

use nx_vulkan_ir::CType;
use rspirv::spirv::Word;

/// Shared memory comes as three arrays, of elements of 1, 2 and 4 words.
pub(super) const WIDTHS: [u32; 3] = [1, 2, 4];

/// Which memory a region lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// The array of that number in shared memory.
    Shared(usize),
    /// The workgroup's part of the scratch buffer; positions are bytes.
    Scratch,
}

/// A row-major array of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub space: Space,
    pub offset: u32,
    pub elements: u32,
    /// Words of one element.
    pub words: u32,
}

/// A part of a memory that is read or written.
#[derive(Debug, Clone, Copy)]
struct Span {
    space: Space,
    start: u32,
    end: u32,
}

impl Region {
    fn span(&self) -> Span {
        Span { space: self.space, start: self.offset, end: self.offset.saturating_add(self.length()) }
    }

    /// In units of its space.
    fn length(&self) -> u32 {
        match self.space {
            Space::Shared(_) => self.elements,
            Space::Scratch => self.elements.saturating_mul(self.words * 4).div_ceil(16).saturating_mul(16),
        }
    }
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.space == other.space && self.start < other.end && other.start < self.end
    }
}

/// Words of a value of a compute type.
pub(super) fn words(ctype: CType) -> u32 {
    ctype.dtype().size_bytes() as u32 / 4
}

/// Free and used places of one memory.
#[derive(Debug, Default)]
struct Arena {
    free: Vec<(u32, u32)>,
    end: u32,
}

impl Arena {
    /// The first free place, and how far the arena would reach with it.
    fn find(&self, length: u32) -> (Option<usize>, u32) {
        match self.free.iter().position(|&(_, free)| free >= length) {
            Some(i) => (Some(i), self.end),
            // Too much of it fails when it is allocated.
            None => (None, self.end.saturating_add(length)),
        }
    }

    fn take(&mut self, length: u32) -> u32 {
        match self.find(length) {
            (Some(i), _) => {
                let (start, free) = self.free[i];
                if free == length {
                    self.free.remove(i);
                } else {
                    self.free[i] = (start + length, free - length);
                }
                start
            }
            (None, end) => std::mem::replace(&mut self.end, end),
        }
    }

    fn give(&mut self, start: u32, length: u32) {
        let at = self.free.partition_point(|&(other, _)| other < start);
        self.free.insert(at, (start, length));
        let merge = |free: &mut Vec<(u32, u32)>, i: usize| {
            if let (Some(&(a, n)), Some(&(b, m))) = (free.get(i), free.get(i + 1))
                && a + n == b
            {
                free[i] = (a, n + m);
                free.remove(i + 1);
            }
        };
        merge(&mut self.free, at);
        if at > 0 {
            merge(&mut self.free, at - 1);
        }
    }
}

/// All memory of a workgroup, and what was done to it since the last barrier.
#[derive(Debug)]
pub(super) struct Memory {
    shared: [Arena; 3],
    /// The ids of the arrays, once something uses them.
    pub arrays: [Option<Word>; 3],
    scratch: Arena,
    limit_bytes: u32,
    reads: Vec<Span>,
    writes: Vec<Span>,
}

impl Memory {
    pub fn new(limit_bytes: u32) -> Memory {
        Memory {
            shared: Default::default(),
            arrays: [None; 3],
            scratch: Arena::default(),
            limit_bytes,
            reads: vec![],
            writes: vec![],
        }
    }

    /// A region for elements of `words` words: in shared memory where it fits.
    pub fn allocate(&mut self, words: u32, elements: u32) -> Region {
        let width = WIDTHS.iter().position(|&w| w == words).unwrap_or(0);
        let others: u32 = (0..3).filter(|&w| w != width).map(|w| self.shared[w].end * WIDTHS[w] * 4).sum();
        let (_, end) = self.shared[width].find(elements);
        if u64::from(others) + u64::from(end) * u64::from(words * 4) <= u64::from(self.limit_bytes) {
            let offset = self.shared[width].take(elements);
            return Region { space: Space::Shared(width), offset, elements, words };
        }
        self.allocate_scratch(words, elements)
    }

    /// A region of the scratch buffer.
    pub fn allocate_scratch(&mut self, words: u32, elements: u32) -> Region {
        let mut region = Region { space: Space::Scratch, offset: 0, elements, words };
        region.offset = self.scratch.take(region.length());
        region
    }

    pub fn release(&mut self, region: Region) {
        match region.space {
            Space::Shared(width) => self.shared[width].give(region.offset, region.length()),
            Space::Scratch => self.scratch.give(region.offset, region.length()),
        }
    }

    /// Elements that the shared array of number `width` needs.
    pub fn shared_elements(&self, width: usize) -> u32 {
        self.shared[width].end
    }

    /// Bytes of the scratch buffer that each workgroup needs.
    pub fn scratch_bytes(&self) -> u32 {
        self.scratch.end
    }

    /// Notes reads and writes that are about to happen. Answers whether a barrier must come first.
    pub fn touch(&mut self, reads: &[Region], writes: &[Region]) -> bool {
        let meets = |spans: &[Span], region: &Region| spans.iter().any(|span| span.meets(&region.span()));
        let conflict = reads.iter().any(|r| meets(&self.writes, r))
            || writes.iter().any(|r| meets(&self.writes, r) || meets(&self.reads, r));
        if conflict {
            self.settle();
        }
        self.reads.extend(reads.iter().map(Region::span));
        self.writes.extend(writes.iter().map(Region::span));
        conflict
    }

    /// Forgets what happened before a barrier.
    pub fn settle(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_and_spills() {
        let mut memory = Memory::new(1024);
        let a = memory.allocate(1, 100);
        let b = memory.allocate(1, 100);
        let c = memory.allocate(2, 28);
        assert_eq!((a.space, b.offset, c.space), (Space::Shared(0), 100, Space::Shared(1)));
        assert_eq!(memory.allocate(1, 1).space, Space::Scratch);
        memory.release(a);
        memory.release(b);
        assert_eq!(memory.allocate(1, 150).offset, 0);
        assert_eq!(memory.allocate(1, 50).offset, 150);
        assert_eq!(memory.shared_elements(0), 200);
    }

    #[test]
    fn only_conflicts_need_barriers() {
        let mut memory = Memory::new(1 << 15);
        let [a, b] = [memory.allocate(1, 8), memory.allocate(1, 8)];
        assert!(!memory.touch(&[], &[a]));
        assert!(!memory.touch(&[b], &[]));
        assert!(memory.touch(&[a], &[]));
        assert!(memory.touch(&[], &[a]));
        assert!(!memory.touch(&[b], &[]));
        assert!(memory.touch(&[], &[b]));
    }
}
