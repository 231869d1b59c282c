//! The regions of one kind of memory, and what is free of them.

use std::collections::VecDeque;

use super::block::{Block, FreeBlock, Hazard, MemoryKind};
use super::class::class_of;
use super::pool::Chunk;
use super::ranges::FreeRanges;

/// One allocation of the backing.
pub(super) struct Region<M> {
    chunk: Chunk<M>,
    pub(super) size_bytes: u64,
    /// Free space; unused in a dedicated region that is one block.
    pub(super) free: FreeRanges,
    /// Whether it is a dedicated region whose parts are blocks. What is free of it waits for the others.
    pub(super) has_parts: bool,
    /// Bytes of it that buffers hold.
    used_bytes: u64,
}

impl<M> Region<M> {
    pub(super) fn new(chunk: Chunk<M>, size_bytes: u64, free: FreeRanges) -> Region<M> {
        Region { chunk, size_bytes, free, has_parts: false, used_bytes: 0 }
    }
}

/// Regions, and which parts of them nobody holds.
pub(super) struct Heap<M> {
    pub(super) regions: Vec<Option<Region<M>>>,
    /// Free blocks by class, oldest first.
    pub(super) classes: Vec<VecDeque<FreeBlock>>,
    /// Bytes in `classes`.
    pub(super) class_bytes: u64,
    /// Free dedicated regions, oldest first.
    pub(super) dedicated: Vec<FreeBlock>,
    pub(super) dedicated_bytes: u64,
    pub(super) reserved_bytes: u64,
    lately: Lately,
}

/// What was in use between the last looks of [`Pool::tidy`](super::pool::Pool::tidy), the latest first.
#[derive(Debug, Default)]
struct Lately {
    /// The most bytes that were in use at once.
    peak_bytes: [u64; LOOKS],
    /// Whether somebody asked for memory.
    is_asked: [bool; LOOKS],
}

/// As many times between looks make up what is lately.
pub(crate) const LOOKS: usize = 3;

/// While somebody asks for memory, the pool keeps as much as so many times what was in use lately: steps that take turns
/// with others of other sizes find what they had.
const KEPT_WHILE_ASKED: u64 = 2;

// SAFETY: a chunk's mapped pointer belongs to its memory, which is Send; the heap is used under its mutex only.
unsafe impl<M: Send> Send for Heap<M> {}

impl<M> Default for Heap<M> {
    fn default() -> Self {
        Heap {
            regions: Vec::new(),
            classes: Vec::new(),
            class_bytes: 0,
            dedicated: Vec::new(),
            dedicated_bytes: 0,
            reserved_bytes: 0,
            lately: Lately::default(),
        }
    }
}

impl<M> Heap<M> {
    pub(super) fn push_class(&mut self, free: FreeBlock) {
        let (class, bytes) = class_of(free.block.size_bytes);
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, VecDeque::new);
        }
        self.class_bytes += bytes;
        self.classes[class].push_back(free);
    }

    pub(super) fn pop_class(&mut self, class: usize) -> Option<FreeBlock> {
        let free = self.classes.get_mut(class)?.pop_front()?;
        self.class_bytes -= free.block.size_bytes;
        Some(free)
    }

    /// Whether a block is part of a dedicated region.
    pub(super) fn has_parts(&self, free: &FreeBlock) -> bool {
        matches!(self.regions.get(free.block.region as usize), Some(Some(region)) if region.has_parts)
    }

    /// Takes back part of a dedicated region. Answers the region once nobody has any of it.
    pub(super) fn push_part(&mut self, FreeBlock { block, hazard }: FreeBlock) -> Option<FreeBlock> {
        let region = self.regions.get_mut(block.region as usize)?.as_mut()?;
        region.free.give(block.offset, block.size_bytes, hazard);
        let hazard = region.free.entirely_free(region.size_bytes)?;
        region.has_parts = false;
        region.free = FreeRanges::default();
        let size_bytes = region.size_bytes;
        self.block(block.kind, block.region as usize, 0, size_bytes, hazard)
    }

    pub(super) fn cut(&mut self, bytes: u64) -> Option<(usize, u64, Hazard)> {
        self.cut_where(bytes, |region| !region.has_parts)
    }

    /// Memory between parts that others still hold.
    pub(super) fn cut_of_parts(&mut self, bytes: u64) -> Option<(usize, u64, Hazard)> {
        self.cut_where(bytes, |region| region.has_parts)
    }

    fn cut_where(&mut self, bytes: u64, may: impl Fn(&Region<M>) -> bool) -> Option<(usize, u64, Hazard)> {
        self.regions.iter_mut().enumerate().find_map(|(i, slot)| {
            let region = slot.as_mut().filter(|region| may(region))?;
            let (offset, hazard) = region.free.take(bytes)?;
            Some((i, offset, hazard))
        })
    }

    pub(super) fn block(
        &self,
        kind: MemoryKind,
        region: usize,
        offset: u64,
        size_bytes: u64,
        hazard: Hazard,
    ) -> Option<FreeBlock> {
        let chunk = &self.regions.get(region)?.as_ref()?.chunk;
        let mapped = match chunk.mapped.is_null() {
            true => chunk.mapped,
            false => chunk.mapped.wrapping_add(usize::try_from(offset).ok()?),
        };
        let block = Block {
            kind,
            region: u32::try_from(region).ok()?,
            offset,
            size_bytes,
            handle: chunk.handle,
            address: chunk.address + offset,
            mapped,
        };
        Some(FreeBlock { block, hazard })
    }

    /// Returns the free blocks of every class to their regions, where neighbours join.
    pub(super) fn consolidate(&mut self) {
        self.join_free(|_| true);
    }

    /// As [`Heap::consolidate`], the blocks of some regions alone.
    fn join_free(&mut self, may: impl Fn(&Region<M>) -> bool) {
        let Heap { regions, classes, class_bytes, .. } = self;
        for class in classes {
            class.retain(|FreeBlock { block, hazard }| {
                let region = regions.get_mut(block.region as usize).and_then(Option::as_mut);
                let Some(region) = region.filter(|region| may(region)) else { return true };
                region.free.give(block.offset, block.size_bytes, *hazard);
                *class_bytes -= block.size_bytes;
                false
            });
        }
    }

    /// Notes bytes of a region that a buffer holds from now on, and how many are in use then.
    pub(super) fn note_taken(&mut self, region: u32, size_bytes: u64, in_use_bytes: u64) {
        if let Some(Some(region)) = self.regions.get_mut(region as usize) {
            region.used_bytes += size_bytes;
        }
        let [peak_bytes, ..] = &mut self.lately.peak_bytes;
        *peak_bytes = in_use_bytes.max(*peak_bytes);
        self.lately.is_asked[0] = true;
    }

    /// Notes bytes of a region that no buffer holds any more.
    pub(super) fn note_given(&mut self, region: u32, size_bytes: u64) {
        if let Some(Some(region)) = self.regions.get_mut(region as usize) {
            region.used_bytes -= size_bytes;
        }
    }

    /// How many bytes to keep. What is asked for from now on is counted with the next look.
    pub(super) fn bytes_to_keep(&mut self, in_use_bytes: u64) -> u64 {
        let Lately { peak_bytes, is_asked } = &mut self.lately;
        let most = peak_bytes.iter().copied().fold(in_use_bytes, u64::max);
        let times = if is_asked.contains(&true) { KEPT_WHILE_ASKED } else { 1 };
        peak_bytes.rotate_right(1);
        is_asked.rotate_right(1);
        (peak_bytes[0], is_asked[0]) = (in_use_bytes, false);
        most.saturating_mul(times)
    }

    /// Whether there are more than so many bytes, and a region that goes back for that once no submission uses it.
    pub(super) fn has_more_than(&self, keep_bytes: u64) -> bool {
        let over = self.reserved_bytes.saturating_sub(keep_bytes);
        self.regions.iter().flatten().any(|region| region.used_bytes == 0 && region.size_bytes <= over)
    }

    /// Gives regions back that nobody holds and that no submission after `completed` uses, until so many bytes are left.
    /// Returns the bytes freed.
    pub(super) fn give_back(&mut self, completed: u64, keep_bytes: u64) -> u64 {
        if !self.has_more_than(keep_bytes) {
            return 0;
        }
        let before = self.reserved_bytes;
        self.join_free(|region| region.used_bytes == 0);
        let mut left = before;
        let regions = &mut self.regions;
        self.dedicated.retain(|FreeBlock { block, hazard }| {
            let drop = left - block.size_bytes >= keep_bytes && hazard.use_serial <= completed;
            if drop {
                left -= block.size_bytes;
                self.dedicated_bytes -= block.size_bytes;
                regions[block.region as usize] = None;
            }
            !drop
        });
        // The last ones are the largest.
        for slot in self.regions.iter_mut().rev() {
            let idle = slot.as_ref().is_some_and(|r| {
                let rests = r.free.entirely_free(r.size_bytes).is_some_and(|h| h.use_serial <= completed);
                rests && left - r.size_bytes >= keep_bytes
            });
            if idle && let Some(region) = slot.take() {
                left -= region.size_bytes;
            }
        }
        self.reserved_bytes = left;
        before - left
    }

    /// Frees idle dedicated regions, oldest first, until at most `keep_bytes` of them are left. Returns the bytes
    /// freed.
    pub(super) fn drop_dedicated(&mut self, completed: u64, keep_bytes: u64) -> u64 {
        let before = self.dedicated_bytes;
        let mut left = before;
        let regions = &mut self.regions;
        self.dedicated.retain(|FreeBlock { block, hazard }| {
            let drop = left > keep_bytes && hazard.use_serial <= completed;
            if drop {
                left -= block.size_bytes;
                regions[block.region as usize] = None;
            }
            !drop
        });
        self.dedicated_bytes = left;
        self.reserved_bytes -= before - left;
        before - left
    }
}
