//! Copies that need not be made: what is put together lies where it will be from the beginning on.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use nx_vulkan_device::capture::{Action, BufferRef, Command, Gate};
use nx_vulkan_device::kernel::Waits;
use smallvec::SmallVec;

use super::arena::{ALIGN_BYTES, Role};

/// Buffers that lie within others.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// By the number of a part: what it lies in, which is no part itself, and where.
    within: HashMap<u32, (u32, u64)>,
}

impl Parts {
    /// The buffer that has a place of its own in which a buffer lies, and where in it.
    pub fn whole(&self, id: u32) -> (u32, u64) {
        self.within.get(&id).copied().unwrap_or((id, 0))
    }

    /// Notes that a buffer lies in another, at so many bytes.
    pub fn add(&mut self, part: u32, whole: u32, at: u64) {
        self.within.insert(part, (whole, at));
    }

    /// Both of these, of which none has a part or a whole of the other's.
    pub fn and(mut self, others: &Parts) -> Parts {
        self.within.extend(&others.within);
        self
    }

    pub fn is_part(&self, id: u32) -> bool {
        self.within.contains_key(&id)
    }

    /// The parts, what they lie in, and where.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        self.within.iter().map(|(&part, &(whole, at))| (part, whole, at))
    }
}

/// The commands but for copies of intermediate results into something larger, which become parts of that; none where
/// there are no such copies. Whatever reads the whole reads its parts, too.
pub(super) fn without_copies(
    commands: &[Command],
    sizes: &[u64],
    role: impl Fn(u32) -> Role,
) -> Option<(Vec<Command>, Parts)> {
    let found = Uses::of(commands).parts(commands, sizes, role);
    if found.is_empty() {
        return None;
    }
    // A part may have parts of its own.
    let mut held: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut parts = Parts::default();
    for (&id, part) in &found {
        let (mut whole, mut at) = (part.whole, part.begin);
        held.entry(whole).or_default().push(id);
        while let Some(next) = found.get(&whole) {
            held.entry(next.whole).or_default().push(id);
            (whole, at) = (next.whole, at + next.begin);
        }
        parts.within.insert(id, (whole, at));
    }
    let copies: HashSet<usize> = found.values().map(|part| part.copy).collect();
    let left = commands.iter().enumerate().filter(|(i, _)| !copies.contains(i));
    let mut commands: Vec<Command> = left.map(|(_, command)| command.clone()).collect();
    for command in &mut commands {
        let reads: SmallVec<[u32; 4]> = command.reads.iter().filter_map(BufferRef::id).collect();
        let parts_of = |id: &u32| held.get(id).into_iter().flatten();
        let is_cut = |id: &u32| parts.is_part(*id) || parts_of(id).any(|part| reads.contains(part));
        // What is written where a whole lies must not be read as a part of it by others that run the same kernel.
        command.in_place.retain(|(read, written)| !is_cut(read) && !parts.is_part(*written));
        let mut more: Vec<u32> = reads.iter().flat_map(parts_of).copied().collect();
        more.sort_unstable();
        more.dedup();
        command.reads.extend(more.into_iter().map(BufferRef::Virtual));
    }
    Some((commands, parts))
}

/// Bytes of a buffer that a copy of a whole one fills.
struct Filled {
    source: u32,
    whole: u32,
    range: Range<u64>,
}

/// What a copy makes of a buffer that may as well lie there.
struct Alias {
    copy: usize,
    whole: u32,
    begin: u64,
}

/// The commands that read and write each buffer, in their order.
#[derive(Default)]
struct Uses {
    readers: HashMap<u32, Vec<usize>>,
    writers: HashMap<u32, Vec<usize>>,
}

impl Uses {
    fn of(commands: &[Command]) -> Uses {
        let mut uses = Uses::default();
        for (i, command) in commands.iter().enumerate() {
            command.reads.iter().filter_map(BufferRef::id).for_each(|id| uses.readers.entry(id).or_default().push(i));
            command.writes.iter().filter_map(BufferRef::id).for_each(|id| uses.writers.entry(id).or_default().push(i));
            // What decides about commands is no whole of others.
            uses.readers.extend(command.decided_by().map(|id| (id, vec![0])));
        }
        uses
    }

    /// The parts by their numbers.
    fn parts(&self, commands: &[Command], sizes: &[u64], role: impl Fn(u32) -> Role) -> HashMap<u32, Alias> {
        let mut found = HashMap::new();
        for (i, command) in commands.iter().enumerate() {
            let Some(Filled { source, whole, range }) = filled(command) else { continue };
            let size_bytes = |id: u32| sizes.get(id as usize).copied().unwrap_or(0);
            // Kernels may touch what lies behind the end of a buffer up to there.
            let is_apart = range.start % ALIGN_BYTES == 0
                && (range.end % ALIGN_BYTES == 0 || range.end == size_bytes(whole))
                && range.end - range.start == size_bytes(source);
            let has_twin = commands.get(i + 1).is_some_and(|next| next.waits == Waits::Beside);
            let is_there = self.writers.get(&source).is_some_and(|writers| writers.iter().all(|&writer| writer < i));
            let is_own = role(source) == Role::Intermediate
                && matches!(role(whole), Role::Intermediate | Role::Result)
                && source != whole;
            if is_apart && !has_twin && is_there && is_own && self.is_filled_once(commands, whole, i, &range) {
                found.entry(source).or_insert(Alias { copy: i, whole, begin: range.start });
            }
        }
        found
    }

    /// Whether a buffer is read when all of it is written, and nothing but one command writes these bytes of it.
    fn is_filled_once(&self, commands: &[Command], whole: u32, by: usize, range: &Range<u64>) -> bool {
        let [readers, writers] = [&self.readers, &self.writers].map(|uses| uses.get(&whole).map_or(&[][..], |all| all));
        let is_apart = |&other: &usize| {
            let Some(command) = commands.get(other) else { return false };
            let are_parts = matches!(command.waits, Waits::Part(_)) && command.waits == commands[by].waits;
            let lies_apart = |other: Filled| {
                other.whole == whole && (other.range.end <= range.start || range.end <= other.range.start)
            };
            other == by || are_parts || filled(command).is_some_and(lies_apart)
        };
        readers.first().is_none_or(|first| Some(first) > writers.last()) && writers.iter().all(is_apart)
    }
}

/// What a command fills with the contents of another buffer, if it does nothing else and nothing decides about it.
fn filled(command: &Command) -> Option<Filled> {
    let (source, whole) = (command.read()?, command.written()?);
    let (from, to, size_bytes) = match &command.action {
        &Action::Copy { from_bytes, to_bytes, size_bytes } => (from_bytes, to_bytes, size_bytes),
        Action::Launch { gate: Gate::Open, patches, .. } => {
            let begin = |id: u32| Some(patches.iter().find(|patch| patch.buffer == id)?.offset_bytes);
            (begin(source)?, begin(whole)?, command.copied_bytes.filter(|_| patches.len() == 2)?)
        }
        Action::Launch { .. } | Action::Fill { .. } => return None,
    };
    let is_alone = from == 0 && command.reads.len() == 1 && command.writes.len() == 1;
    is_alone.then_some(Filled { source, whole, range: to..to + size_bytes })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::schedule::{Room, schedule};
    use super::*;
    use crate::tuning::Short;

    const SHORT: Short = Short { groups: 1000, bytes: 16 << 20, flops: 1 << 28 };
    const ROOM: Room = Room { arena_bytes: u64::MAX, together_bytes: 0 };

    fn command(action: Action, reads: &[u32], writes: u32) -> Command {
        Command {
            action,
            work: None,
            reads: reads.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            writes: SmallVec::from_iter([BufferRef::Virtual(writes)]),
            waits: Waits::All,
            in_place: SmallVec::new(),
            copied_bytes: None,
        }
    }

    fn kernel(reads: &[u32], writes: u32) -> Command {
        command(Action::Fill { offset_bytes: 0, size_bytes: 0, word: 0 }, reads, writes)
    }

    fn copy(read: u32, written: u32, to_bytes: u64, size_bytes: u64) -> Command {
        command(Action::Copy { from_bytes: 0, to_bytes, size_bytes }, &[read], written)
    }

    /// The copies that are left, and where buffers lie in the arena.
    fn laid(commands: Vec<Command>, sizes: &[u64], role: impl Fn(u32) -> Role) -> (usize, HashMap<u32, u64>) {
        let schedule = schedule(commands, sizes, role, ROOM, SHORT);
        let left = schedule.commands.iter().filter(|command| matches!(command.action, Action::Copy { .. })).count();
        (left, schedule.places.arena)
    }

    /// 0 is an input and the last buffer a result.
    fn but(last: u32) -> impl Fn(u32) -> Role {
        move |id| if id == 0 || id == last { Role::Other } else { Role::Intermediate }
    }

    #[test]
    fn parts_of_parts_lie_in_the_whole() {
        // 3 is 1 and 2, 5 is 4 and 3.
        let commands = || {
            vec![
                kernel(&[0], 1),
                kernel(&[1], 2),
                copy(1, 3, 0, 256),
                copy(2, 3, 256, 256),
                kernel(&[2], 4),
                copy(4, 5, 0, 512),
                copy(3, 5, 512, 512),
                kernel(&[5], 6),
            ]
        };
        let sizes = [256, 256, 256, 512, 512, 1024, 256];
        let (left, arena) = laid(commands(), &sizes, but(6));
        assert_eq!(left, 0);
        let at = |id: u32| arena[&id] - arena[&5];
        assert_eq!([4, 3, 1, 2].map(at), [0, 512, 512, 768]);
        // Where the whole is a result, they lie in its memory.
        let role = |id: u32| [Role::Other, Role::Result][usize::from(id == 5)];
        let role = |id: u32| if (1..5).contains(&id) { Role::Intermediate } else { role(id) };
        let schedule = schedule(commands(), &sizes, role, ROOM, SHORT);
        let within = |id: u32| schedule.places.within[&id];
        assert_eq!([4, 3, 1, 2].map(within), [(5, 0), (5, 512), (5, 512), (5, 768)]);
        assert!(schedule.places.arena.is_empty());
    }

    #[test]
    fn what_reads_a_part_besides_is_not_written_where_the_whole_lies() {
        let places = |reads: &[u32]| {
            let last = Command { in_place: SmallVec::from_iter([(3, 4)]), ..kernel(reads, 4) };
            let commands =
                vec![kernel(&[0], 1), kernel(&[0], 2), copy(1, 3, 0, 256), copy(2, 3, 256, 256), last, kernel(&[4], 5)];
            let (left, arena) = laid(commands, &[256, 256, 256, 512, 512, 256], but(5));
            assert_eq!(left, 0);
            [arena[&3], arena[&4]]
        };
        assert_eq!(places(&[3]), [0, 0]);
        let [whole, written] = places(&[3, 1]);
        assert_ne!(whole, written);
    }

    #[test]
    fn what_reads_the_whole_waits_for_its_parts() {
        let commands =
            vec![kernel(&[0], 1), kernel(&[0], 2), copy(1, 3, 0, 256), copy(2, 3, 256, 256), kernel(&[3], 4)];
        let schedule = schedule(commands, &[256, 256, 256, 512, 256], but(4), ROOM, SHORT);
        assert_eq!(schedule.barriers, [false, false, true]);
        assert_eq!(schedule.places.arena_bytes, 512);
    }

    #[test]
    fn copies_stay_where_parts_could_not_lie_there() {
        let left = |commands: Vec<Command>, sizes: &[u64]| {
            let last = sizes.len() as u32 - 1;
            laid(commands, sizes, but(last)).0
        };
        let sizes = [256, 256, 256, 512, 256];
        let whole = |middle: Vec<Command>| {
            let mut commands = vec![kernel(&[0], 1), kernel(&[0], 2)];
            commands.extend(middle);
            commands.push(kernel(&[3], 4));
            commands
        };
        let both = || vec![copy(1, 3, 0, 256), copy(2, 3, 256, 256)];
        assert_eq!(left(whole(both()), &sizes), 0);
        // An input, and a part that is there twice.
        assert_eq!(left(whole(vec![copy(0, 3, 0, 256), copy(2, 3, 256, 256)]), &sizes), 1);
        assert_eq!(left(whole(vec![copy(1, 3, 0, 256), copy(1, 3, 256, 256)]), &sizes), 1);
        // Copies over each other, and over what a kernel writes.
        assert_eq!(left(whole(vec![copy(1, 3, 0, 256), copy(2, 3, 0, 256)]), &sizes), 2);
        assert_eq!(left(whole(vec![kernel(&[0], 3), copy(2, 3, 256, 256)]), &sizes), 1);
        // What reads the whole before all of it is there.
        let early = vec![copy(1, 3, 0, 256), kernel(&[3], 4), copy(2, 3, 256, 256)];
        assert_eq!(left(whole(early), &sizes), 2);
        // A part that is written again.
        let again = vec![copy(1, 3, 0, 256), copy(2, 3, 256, 256), kernel(&[0], 1)];
        assert_eq!(left(whole(again), &sizes), 1);
        // Half a buffer, one that ends between two places, and one that begins there.
        assert_eq!(left(whole(vec![copy(1, 3, 0, 128), copy(2, 3, 256, 256)]), &sizes), 1);
        let odd = [256, 200, 256, 456, 256];
        assert_eq!(left(whole(vec![copy(1, 3, 0, 200), copy(2, 3, 200, 256)]), &odd), 2);
        assert_eq!(left(whole(vec![copy(1, 3, 256, 200), copy(2, 3, 0, 256)]), &odd), 0);
    }
}
