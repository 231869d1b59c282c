//! Where the intermediate results of a batch lie: in its arena, in memory of results that nothing has written yet, or
//! in the place of what an elementwise kernel reads for the last time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use nx_vulkan_device::capture::Command;

use super::parts::Parts;

/// Where buffers begin is a multiple of this.
pub(super) const ALIGN_BYTES: u64 = 256;

/// What a buffer is to its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Only the batch uses it.
    Intermediate,
    /// It has memory of its own, of which nothing was written before the batch.
    Result,
    /// An input that nothing needs after the batch, and whose memory a result of the same size may have.
    Donated,
    /// It keeps its memory.
    Other,
}

/// Levels and numbers of commands, in the order in which they are recorded.
pub(super) type Order = Vec<(usize, usize)>;

/// First and last level.
type Span = (usize, usize);

/// Where buffers lie, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Offsets in the arena.
    pub arena: HashMap<u32, u64>,
    pub arena_bytes: u64,
    /// Results whose memory others have before, with offsets in that.
    pub within: HashMap<u32, (u32, u64)>,
    /// Donated inputs, and the results that may have their memory.
    pub donated: BTreeMap<u32, u32>,
    /// Results that lie one behind the other in one piece of memory: the first of them, and where each begins behind
    /// it.
    pub together: BTreeMap<u32, (u32, u64)>,
}

impl Places {
    /// The memory of a buffer of this size, none for the arena, and where it begins and ends there.
    pub fn range(&self, id: u32, size_bytes: u64) -> (Option<u32>, u64, u64) {
        let size = size_bytes.max(1).next_multiple_of(ALIGN_BYTES);
        if let Some(&at) = self.arena.get(&id) {
            return (None, at, at + size);
        }
        let given = || self.donated.get(&id).map(|&result| (result, 0));
        let (result, at) = self.within.get(&id).copied().or_else(given).unwrap_or((id, 0));
        let (memory, begin) = self.together.get(&result).copied().unwrap_or((result, 0));
        (Some(memory), begin + at, begin + at + size)
    }
}

/// Commands in the program's order, and what their buffers are.
pub(super) struct Buffers<'a, F> {
    pub commands: &'a [Command],
    /// The commands from here on come at the end.
    pub until: usize,
    pub sizes: &'a [u64],
    pub role: &'a F,
    pub parts: &'a Parts,
    /// Whether large results are made as late as their operands are there anyway.
    pub is_late: bool,
    /// The most bytes of results that may lie in one piece of memory.
    pub together_bytes: u64,
}

/// The levels that need a buffer.
struct Use {
    span: Span,
    /// The one command that uses it at the first of them, and the one at the last.
    begins: Option<usize>,
    ends: Option<usize>,
}

/// An intermediate result that a batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub size_bytes: u64,
    /// The first command that uses it, and the last, by their places in the order.
    pub from: usize,
    pub to: usize,
}

/// Buffers that follow each other in one place.
pub(super) struct Chain {
    ids: Vec<u32>,
    span: Span,
}

/// An arena from which on it is worth it to have results in one piece of memory, and the part of it that this has to
/// save.
pub(super) const MUCH_ARENA_BYTES: u64 = 32 << 20;
const LEAST_SAVED: u64 = 8;

/// Memory that buffers share.
struct Shared {
    /// The result whose memory it is, none for the arena.
    result: Option<u32>,
    size_bytes: u64,
    /// From where to where, the lowest first, and at which levels.
    taken: Vec<(u64, u64, Span)>,
}

impl Shared {
    /// The lowest place for so many bytes at these levels.
    fn place(&self, size_bytes: u64, span: Span) -> Option<u64> {
        let mut at = 0u64;
        for &(begin, end, other) in &self.taken {
            if begin >= at + size_bytes || at.saturating_add(size_bytes) > self.size_bytes {
                break;
            }
            if other.0 <= span.1 && span.0 <= other.1 {
                at = at.max(end);
            }
        }
        (at.saturating_add(size_bytes) <= self.size_bytes).then_some(at)
    }

    fn take(&mut self, begin: u64, end: u64, span: Span) {
        let at = self.taken.partition_point(|&(other, ..)| other <= begin);
        self.taken.insert(at, (begin, end, span));
    }
}

impl<F: Fn(u32) -> Role> Buffers<'_, F> {
    pub(super) fn size(&self, id: u32) -> u64 {
        self.sizes.get(id as usize).copied().unwrap_or(0)
    }

    fn aligned_size(&self, id: u32) -> u64 {
        self.size(id).max(1).next_multiple_of(ALIGN_BYTES)
    }

    pub(super) fn is(&self, id: u32, role: Role) -> bool {
        (self.role)(id) == role
    }

    /// The buffers with places of their own that a command uses.
    fn wholes(&self, command: usize) -> impl Iterator<Item = u32> + '_ {
        self.commands[command].ids().map(|id| self.parts.whole(id).0)
    }

    /// Donated inputs are needed from the beginning on.
    fn uses(&self, order: &[(usize, usize)]) -> HashMap<u32, Use> {
        let mut uses: HashMap<u32, Use> = HashMap::new();
        for &(level, i) in order {
            for id in self.wholes(i).filter(|&id| !self.is(id, Role::Other)) {
                let from = if self.is(id, Role::Donated) { 0 } else { level };
                let first = Use { span: (from, level), begins: Some(i), ends: Some(i) };
                let used = uses.entry(id).or_insert(first);
                used.begins = used.begins.filter(|&begins| begins == i || level > used.span.0);
                used.ends = if level > used.span.1 { Some(i) } else { used.ends.filter(|&ends| ends == i) };
                used.span.1 = level;
            }
        }
        uses
    }

    /// Buffers, each with those that have its place after it: the last command to use one is the first to use the next,
    /// and nothing else does at that level. A donated input begins only what ends in a result.
    pub fn chains(&self, order: &[(usize, usize)]) -> Vec<Chain> {
        let uses = self.uses(order);
        let mut next: HashMap<u32, u32> = HashMap::new();
        let mut followed: HashSet<u32> = HashSet::new();
        let pairs = order.iter().flat_map(|&(_, i)| self.commands[i].in_place.iter().map(move |pair| (i, *pair)));
        let mut pairs: Vec<(usize, (u32, u32))> = pairs.collect();
        // A donated input is memory that is not allocated, an intermediate result only some that may be free already.
        pairs.sort_by_key(|&(_, (read, _))| !self.is(read, Role::Donated));
        for (i, (read, written)) in pairs {
            let ends = uses.get(&read).is_some_and(|used| used.ends == Some(i));
            let begins = uses.get(&written).is_some_and(|used| used.begins == Some(i));
            let can_have = !self.is(read, Role::Result) && !self.is(written, Role::Donated);
            if ends
                && begins
                && can_have
                && self.size(read) == self.size(written)
                && !next.contains_key(&read)
                && followed.insert(written)
            {
                next.insert(read, written);
            }
        }
        let mut firsts: Vec<u32> = uses.keys().copied().filter(|id| !followed.contains(id)).collect();
        firsts.sort_unstable();
        let chain = |first: u32| {
            let ids: Vec<u32> = std::iter::successors(Some(first), |id| next.get(id).copied()).collect();
            let ends_in_result = ids.last().is_some_and(|&last| self.is(last, Role::Result));
            let is_cut = self.is(first, Role::Donated) && !ends_in_result && ids.len() > 1;
            let parts = if is_cut { vec![ids[..1].to_vec(), ids[1..].to_vec()] } else { vec![ids] };
            parts.into_iter().map(|ids| {
                let span = |id: Option<&u32>| id.and_then(|id| uses.get(id)).map_or((0, 0), |used| used.span);
                Chain { span: (span(ids.first()).0, span(ids.last()).1), ids }
            })
        };
        firsts.into_iter().flat_map(chain).collect()
    }

    fn result_of(&self, chain: &Chain) -> Option<u32> {
        chain.ids.last().copied().filter(|&last| self.is(last, Role::Result))
    }

    /// Places for buffers that are needed at the same level beside each other, the largest first, each as low as it
    /// fits: in memory of results as long as nothing needs those, or else in the arena. Where the arena is smaller by
    /// much for it, results lie together, so that what is larger than one of them fits.
    pub fn lay_out(&self, chains: &[Chain]) -> Places {
        let apart = self.places(chains, 0);
        if apart.arena_bytes < MUCH_ARENA_BYTES || self.together_bytes == 0 {
            return apart;
        }
        let together = self.places(chains, self.together_bytes);
        let enough = apart.arena_bytes - apart.arena_bytes / LEAST_SAVED;
        if together.arena_bytes <= enough { together } else { apart }
    }

    fn places(&self, chains: &[Chain], together_bytes: u64) -> Places {
        let mut places = Places::default();
        let mut shared: Vec<Shared> = Vec::new();
        let (mut inputs, mut others): (Vec<&Chain>, Vec<&Chain>) = (Vec::new(), Vec::new());
        for chain in chains {
            match (self.result_of(chain), chain.ids.as_slice()) {
                (Some(result), ids) => {
                    let size_bytes = self.size(result);
                    let taken = vec![(0, size_bytes, (chain.span.0, usize::MAX))];
                    shared.push(Shared { result: Some(result), size_bytes, taken });
                    let (donated, within): (Vec<u32>, Vec<u32>) =
                        ids.iter().filter(|&&id| id != result).partition(|&&id| self.is(id, Role::Donated));
                    places.donated.extend(donated.into_iter().map(|id| (id, result)));
                    places.within.extend(within.into_iter().map(|id| (id, (result, 0))));
                }
                (None, [input]) if self.is(*input, Role::Donated) => inputs.push(chain),
                _ => others.push(chain),
            }
        }
        shared.sort_by_key(|memory| (memory.size_bytes, memory.result));
        self.give_away(&inputs, &mut shared, &mut places);
        self.put_together(&mut shared, &mut places, together_bytes);
        shared.push(Shared { result: None, size_bytes: u64::MAX, taken: Vec::new() });
        others.sort_by_key(|chain| (Reverse(self.size(chain.ids[0])), chain.span.0, chain.ids[0]));
        for chain in others {
            let size = self.size(chain.ids[0]);
            // Memory of results comes first, the smallest first.
            let large_enough = shared.partition_point(|memory| memory.size_bytes < size);
            for memory in &mut shared[large_enough..] {
                let Some(at) = memory.place(size, chain.span) else { continue };
                let end = at + self.aligned_size(chain.ids[0]);
                memory.take(at, end, chain.span);
                match memory.result {
                    Some(result) => places.within.extend(chain.ids.iter().map(|&id| (id, (result, at)))),
                    None => {
                        places.arena.extend(chain.ids.iter().map(|&id| (id, at)));
                        places.arena_bytes = places.arena_bytes.max(end);
                    }
                }
                break;
            }
        }
        for (part, whole, at) in self.parts.iter() {
            let begin = places.arena.get(&whole).copied();
            places.arena.extend(begin.map(|begin| (part, begin + at)));
            let within = places.within.get(&whole).map(|&(result, begin)| (result, begin + at));
            let within = within.or_else(|| self.is(whole, Role::Result).then_some((whole, at)));
            places.within.extend(within.map(|place| (part, place)));
        }
        places
    }

    /// Lets results have the memory of inputs that nothing reads any more when they begin.
    fn give_away(&self, inputs: &[&Chain], shared: &mut [Shared], places: &mut Places) {
        // What is read latest has the fewest results to choose from.
        let mut inputs: Vec<&Chain> = inputs.to_vec();
        inputs.sort_by_key(|input| Reverse(input.span.1));
        let mut given: HashSet<u32> = places.donated.values().copied().collect();
        for input in inputs {
            let size_bytes = self.size(input.ids[0]);
            let is_free = |memory: &&mut Shared| {
                let begins = memory.taken.first().is_some_and(|(_, _, span)| span.0 > input.span.1);
                begins && memory.result.is_some_and(|id| !given.contains(&id))
            };
            let first = shared.partition_point(|memory| memory.size_bytes < size_bytes);
            let end = shared.partition_point(|memory| memory.size_bytes <= size_bytes);
            if let Some(memory) = shared[first..end].iter_mut().find(is_free) {
                memory.take(0, size_bytes, input.span);
                given.extend(memory.result);
                places.donated.extend(memory.result.map(|result| (input.ids[0], result)));
            }
        }
    }

    /// Makes one of the memory of results that begin without anything in it, those that begin last first: what lies
    /// where several of them will be is dead before.
    fn put_together(&self, shared: &mut Vec<Shared>, places: &mut Places, most_bytes: u64) {
        let given: HashSet<u32> = places.donated.values().copied().collect();
        let begins = |memory: &Shared| memory.taken.first().map_or(0, |(_, _, span)| span.0);
        let mut order: Vec<usize> = (0..shared.len()).collect();
        order.sort_by_key(|&i| (Reverse(begins(&shared[i])), shared[i].result));
        let mut all = Shared { result: None, size_bytes: 0, taken: Vec::new() };
        let mut members: HashSet<u32> = HashSet::new();
        for memory in order.into_iter().map(|i| &shared[i]) {
            let Some(result) = memory.result.filter(|result| !given.contains(result)) else { continue };
            let begin = all.size_bytes;
            if begin + self.aligned_size(result) > most_bytes {
                continue;
            }
            let first = *all.result.get_or_insert(result);
            places.together.insert(result, (first, begin));
            members.insert(result);
            all.taken.extend(memory.taken.iter().map(|&(from, to, span)| (begin + from, begin + to, span)));
            all.size_bytes += self.aligned_size(result);
        }
        if members.len() < 2 {
            places.together.clear();
            return;
        }
        shared.retain(|memory| memory.result.is_none_or(|result| !members.contains(&result)));
        let at = shared.partition_point(|memory| memory.size_bytes < all.size_bytes);
        shared.insert(at, all);
    }

    /// The bytes of intermediate results that each level of an order needs, without those in the place of a result.
    pub fn live_bytes(&self, order: &[(usize, usize)], chains: &[Chain]) -> Vec<u64> {
        let levels = order.last().map_or(0, |(level, _)| level + 1);
        let (mut begins, mut ends) = (vec![0u64; levels], vec![0u64; levels + 1]);
        for chain in chains {
            if self.result_of(chain).is_none() && !self.is(chain.ids[0], Role::Donated) {
                begins[chain.span.0] += self.aligned_size(chain.ids[0]);
                ends[chain.span.1 + 1] += self.aligned_size(chain.ids[0]);
            }
        }
        let mut live = 0;
        let bytes = begins.iter().zip(&ends).map(|(begin, end)| {
            live = live + begin - end;
            live
        });
        bytes.collect()
    }

    /// What is held at the level that needs most, the largest first.
    pub fn peak(&self, order: &[(usize, usize)], chains: &[Chain]) -> Vec<Held> {
        let live = self.live_bytes(order, chains);
        let Some(level) = (0..live.len()).rev().max_by_key(|&level| live[level]) else { return Vec::new() };
        let mut spans: HashMap<u32, (usize, usize)> = HashMap::new();
        for (at, &(_, i)) in order.iter().enumerate() {
            self.wholes(i).for_each(|id| spans.entry(id).or_insert((at, at)).1 = at);
        }
        let level_of = |at: usize| order.get(at).map_or(0, |(level, _)| *level);
        let held = chains.iter().filter(|chain| {
            let is_counted = self.result_of(chain).is_none() && !self.is(chain.ids[0], Role::Donated);
            is_counted && (chain.span.0..=chain.span.1).contains(&level)
        });
        let held = held.filter_map(|chain| {
            let mut spans = chain.ids.iter().filter_map(|id| spans.get(id)).filter(|span| level_of(span.0) <= level);
            spans.next_back().map(|&(from, to)| Held { size_bytes: self.size(chain.ids[0]), from, to })
        });
        let mut held: Vec<Held> = held.collect();
        held.sort_by_key(|held| (Reverse(held.size_bytes), held.from));
        held
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ops::Range;

    use smallvec::SmallVec;

    use super::super::schedule::{Room, Schedule, schedule};
    use super::*;
    use crate::tuning::Short;
    use nx_vulkan_device::capture::{Action, BufferRef};
    use nx_vulkan_device::kernel::Waits;

    const SHORT: Short = Short { groups: 1000, bytes: 16 << 20, flops: 1 << 28 };
    const ROOM: Room = Room { arena_bytes: u64::MAX, together_bytes: 0 };

    fn command(reads: &[u32], writes: &[u32], in_place: &[(u32, u32)]) -> Command {
        Command {
            action: Action::Fill { offset_bytes: 0, size_bytes: 256, word: 0 },
            work: None,
            reads: reads.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            writes: writes.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            waits: Waits::All,
            in_place: SmallVec::from_slice(in_place),
            copied_bytes: None,
        }
    }

    fn roles(of: &[Role]) -> impl Fn(u32) -> Role + '_ {
        |id| of[id as usize]
    }

    use Role::{Donated, Intermediate, Other, Result};

    #[test]
    fn a_chain_lies_in_the_memory_of_its_result() {
        let commands = [
            command(&[0], &[1], &[]),
            command(&[1], &[2], &[(1, 2)]),
            command(&[2], &[3], &[(2, 3)]),
            command(&[3], &[4], &[(3, 4)]),
        ];
        let of = [Other, Intermediate, Intermediate, Intermediate, Result];
        let places = schedule(commands.to_vec(), &[1000; 5], roles(&of), ROOM, SHORT).places;
        assert_eq!((places.arena_bytes, places.within.len()), (0, 3));
        // Where the result has no memory of its own, the arena has one place.
        let of = [Other, Intermediate, Intermediate, Intermediate, Other];
        let Schedule { places, live_bytes, .. } = schedule(commands.to_vec(), &[1000; 5], roles(&of), ROOM, SHORT);
        assert_eq!((places.arena_bytes, places.within.len(), live_bytes), (1024, 0, vec![1024; 4]));
        // Other sizes have other places, and the last command waits for nobody's place.
        let places = schedule(commands.to_vec(), &[1000, 1000, 1004, 1000, 1000], roles(&of), ROOM, SHORT).places;
        assert_eq!(places.arena_bytes, 2048);
    }

    #[test]
    fn what_others_read_at_the_same_level_keeps_its_place() {
        let commands = [
            command(&[0], &[1], &[]),
            command(&[1], &[2], &[(1, 2)]),
            command(&[1], &[3], &[(1, 3)]),
            command(&[2, 3], &[4], &[(2, 4), (3, 4)]),
        ];
        let of = [Other, Intermediate, Intermediate, Intermediate, Other];
        let places = schedule(commands.to_vec(), &[256; 5], roles(&of), ROOM, SHORT).places;
        assert_eq!(places.arena_bytes, 3 * 256);
        // One after the other, the second may have it.
        let places = schedule(commands.to_vec(), &[256; 5], roles(&of), Room { arena_bytes: 0, ..ROOM }, SHORT).places;
        assert_eq!(places.arena_bytes, 2 * 256);
        assert_eq!(places.arena[&1], places.arena[&3]);
    }

    #[test]
    fn donated_inputs_become_results() {
        // 1 becomes 4 in place, 2 is read before 5 begins, 3 lies with what is read when 6 is written.
        let commands = [
            command(&[0, 2], &[7], &[]),
            command(&[1, 7], &[4], &[(1, 4)]),
            command(&[7], &[8], &[(7, 8)]),
            command(&[8], &[5], &[]),
            command(&[3, 5], &[6], &[]),
        ];
        let of = [Other, Donated, Donated, Donated, Result, Result, Result, Intermediate, Intermediate];
        let places = schedule(commands.to_vec(), &[512; 9], roles(&of), ROOM, SHORT).places;
        assert_eq!(places.donated, BTreeMap::from([(1, 4), (2, 5)]));
        // No result of another size.
        let places =
            schedule(commands.to_vec(), &[512, 512, 512, 512, 256, 256, 512, 512, 512], roles(&of), ROOM, SHORT).places;
        let donated: Vec<(u32, u32)> = places.donated.into_iter().collect();
        assert!(matches!(donated[..], [(1 | 2, 6)]), "{donated:?}");
    }

    #[test]
    fn results_lie_together_where_what_is_larger_fits_then() {
        // 1 is as large as both results together, and gone before they begin.
        let commands =
            [command(&[0], &[1], &[]), command(&[1], &[2], &[]), command(&[2], &[3], &[]), command(&[2], &[4], &[])];
        let mib = 1 << 20;
        let of = [Other, Intermediate, Intermediate, Result, Result];
        let planned = |together_bytes: u64| {
            let sizes = [mib, 60 * mib, 30 * mib, 30 * mib, 30 * mib];
            schedule(commands.to_vec(), &sizes, roles(&of), Room { together_bytes, ..ROOM }, SHORT).places
        };
        for too_little in [0, 59 * mib] {
            let places = planned(too_little);
            assert_eq!((places.arena_bytes, places.within.len(), places.together.len()), (90 * mib, 0, 0));
        }
        let places = planned(60 * mib);
        assert_eq!((places.arena_bytes, places.within[&1]), (30 * mib, (3, 0)));
        assert_eq!(places.together, BTreeMap::from([(3, (3, 0)), (4, (3, 30 * mib))]));
        assert_eq!(places.range(4, 30 * mib), (Some(3), 30 * mib, 60 * mib));
    }

    /// Does in a memory of numbers what a schedule says, with donated inputs in the place of results or beside them:
    /// what a command reads is there, and no command touches what one since the last barrier has touched, unless both
    /// read.
    fn check(schedule: &Schedule, sizes: &[u64], of: &[Role], shares: bool) {
        let home = |id: u32| -> (Option<u32>, Range<u64>) {
            let (memory, begin, _) = match (schedule.places.donated.contains_key(&id), shares) {
                (true, false) => (Some(id), 0, 0),
                _ => schedule.places.range(id, sizes[id as usize]),
            };
            (memory, begin..begin + sizes[id as usize])
        };
        let end_of = |memory: u32| {
            let together = schedule.places.together.iter().filter(|(_, (first, _))| *first == memory);
            together.map(|(&id, &(_, at))| at + sizes[id as usize]).max().unwrap_or(sizes[memory as usize])
        };
        for (id, _) in (0u32..).zip(of).filter(|(_, role)| **role == Intermediate) {
            let (memory, range) = home(id);
            let size = memory.map_or(schedule.places.arena_bytes, end_of);
            assert!(range.end <= size && memory.is_none_or(|result| of[result as usize] == Result), "{id}");
        }
        let pieces = schedule.places.together.iter();
        assert!(pieces.clone().all(|(id, _)| !schedule.places.donated.values().any(|result| result == id)));
        assert!(pieces.clone().all(|(&id, _)| of[id as usize] == Result));
        for ((&a, _), (&b, _)) in pieces.clone().flat_map(|a| pieces.clone().map(move |b| (a, b))) {
            let (a_home, b_home) = (home(a), home(b));
            assert!(a == b || a_home.0 != b_home.0 || a_home.1.end <= b_home.1.start || b_home.1.end <= a_home.1.start);
        }
        let meet = |a: u32, b: u32| {
            let (a, b) = (home(a), home(b));
            a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end
        };
        let ids = 0..of.len() as u32;
        let mut there: HashSet<u32> = ids.clone().filter(|&id| matches!(of[id as usize], Donated | Other)).collect();
        let (mut read, mut written): (Vec<u32>, Vec<u32>) = (vec![], vec![]);
        for (command, waits) in schedule.commands.iter().zip(&schedule.barriers) {
            if *waits {
                (read, written) = (vec![], vec![]);
            }
            let of_places = |places: &[BufferRef]| places.iter().filter_map(BufferRef::id).collect::<Vec<u32>>();
            let (reads, writes) = (of_places(&command.reads), of_places(&command.writes));
            for &id in &reads {
                assert!(there.contains(&id), "{id} is gone when {command:?} reads it");
                assert!(!written.iter().any(|&other| meet(id, other)), "{command:?} does not wait");
            }
            for &id in &writes {
                assert!(!read.iter().chain(&written).any(|&other| meet(id, other)), "{command:?} does not wait");
                for &other in reads.iter().filter(|&&other| meet(id, other)) {
                    assert!(command.in_place.contains(&(other, id)) && home(id) == home(other), "{command:?}");
                }
                there.retain(|&other| !meet(id, other));
            }
            there.extend(&writes);
            read.extend(reads);
            written.extend(writes);
        }
        assert!(ids.filter(|&id| of[id as usize] == Result).all(|id| there.contains(&id)));
        assert!(schedule.places.donated.iter().all(|(input, result)| {
            of[*input as usize] == Donated
                && of[*result as usize] == Result
                && sizes[*input as usize] == sizes[*result as usize]
        }));
    }

    #[test]
    fn nothing_is_written_where_something_is_still_read() {
        let mut state =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
        println!("seed {state}");
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let (mut shared, mut in_results, mut in_place, mut together) = (0, 0, 0, 0);
        for k in 0..800 {
            // Small buffers, and some of those sizes from which on results lie together.
            let unit = [100, MUCH_ARENA_BYTES][k % 2];
            let inputs = 1 + below(4) as usize;
            let mut of: Vec<Role> = (0..inputs).map(|_| if below(2) == 0 { Donated } else { Other }).collect();
            let mut sizes: Vec<u64> = (0..inputs).map(|_| unit * (1 + below(3))).collect();
            let mut commands: Vec<Command> = Vec::new();
            let count = 1 + below(24);
            for _ in 0..count {
                let reads: Vec<u32> = (0..1 + below(3)).map(|_| below(of.len() as u64) as u32).collect();
                let writes: Vec<u32> = (0..1 + below(2)).map(|k| of.len() as u32 + k as u32).collect();
                for _ in &writes {
                    of.push(if below(4) == 0 { Result } else { Intermediate });
                    // Intermediate results may be larger than any other.
                    let most = if of.last() == Some(&Intermediate) { 6 } else { 3 };
                    sizes.push(if below(2) == 0 { sizes[reads[0] as usize] } else { unit * (1 + below(most)) });
                }
                let pairs = reads.iter().flat_map(|&read| writes.iter().map(move |&written| (read, written)));
                let pairs: Vec<(u32, u32)> = pairs.filter(|_| below(3) > 0).collect();
                commands.push(command(&reads, &writes, &pairs));
            }
            for (arena_bytes, together_bytes) in [(0, 0), (7 * unit, 5 * unit), (u64::MAX, u64::MAX)] {
                let room = Room { arena_bytes, together_bytes };
                let schedule = schedule(commands.clone(), &sizes, roles(&of), room, SHORT);
                assert_eq!(schedule.commands.len(), commands.len());
                check(&schedule, &sizes, &of, true);
                check(&schedule, &sizes, &of, false);
                shared += schedule.places.donated.len();
                in_results += schedule.places.within.len();
                together += usize::from(!schedule.places.together.is_empty());
                let is_same = |(a, b): &(u32, u32)| {
                    schedule.places.arena.get(a).is_some_and(|at| schedule.places.arena.get(b) == Some(at))
                };
                in_place += schedule.commands.iter().flat_map(|c| &c.in_place).filter(|pair| is_same(pair)).count();
            }
        }
        let found = [shared, in_results, in_place, together];
        assert!(shared > 20 && in_results > 100 && in_place > 50 && together > 8, "{found:?}");
    }
}
