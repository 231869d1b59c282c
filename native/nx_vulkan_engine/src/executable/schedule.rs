//! The order of a batch's commands, and which of them wait for earlier ones.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use nx_vulkan_device::capture::{Action, BufferRef, Command};
use nx_vulkan_device::kernel::Waits;

use super::arena::{Buffers, Held, MUCH_ARENA_BYTES, Order, Places, Role};
use super::ends::{Ends, results_last};
use super::parts::{Parts, without_copies};
use super::zeros::filled_at_once;
use crate::tuning::Short;

/// Orders that are tried until an arena takes little enough.
const MAX_TRIES: usize = 4;

/// Whether two launches write parts of the same.
fn are_parts(one: Waits, other: Waits) -> bool {
    matches!(one, Waits::Part(_)) && one == other
}

/// A batch whose intermediate results have places in an arena.
#[derive(Debug)]
pub(super) struct Schedule {
    pub commands: Vec<Command>,
    /// Whether a barrier comes before each command.
    pub barriers: Vec<bool>,
    pub places: Places,
    /// Buffers in which others lie.
    pub wholes: HashSet<u32>,
    /// Intermediate results that are there where most are.
    pub held: Vec<Held>,
    /// The bytes of intermediate results that are there while each command runs.
    pub live_bytes: Vec<u64>,
}

fn virtual_ids(places: &[BufferRef]) -> impl Iterator<Item = u32> + '_ {
    places.iter().filter_map(BufferRef::id)
}

/// Memory that a batch may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// What its arena may take, or what the commands would take one after the other where that is more.
    pub arena_bytes: u64,
    /// The most bytes of results in one piece of memory.
    pub together_bytes: u64,
}

/// Plans a batch of buffers of these sizes and roles.
pub(super) fn schedule(
    commands: Vec<Command>,
    sizes: &[u64],
    role: impl Fn(u32) -> Role,
    room: Room,
    short: Short,
) -> Schedule {
    let (commands, sizes, zeros) =
        filled_at_once(&commands, sizes, &role).unwrap_or_else(|| (commands, sizes.to_vec(), Parts::default()));
    let (sizes, known) = (&sizes[..], sizes.len() - usize::from(zeros.iter().next().is_some()));
    let role = |id: u32| if (id as usize) < known { role(id) } else { Role::Intermediate };
    let best = |commands: Vec<Command>, ends: Ends| {
        let all = |commands: Vec<Command>| planned(commands, ends, &zeros, sizes, &role, room, short);
        let Some((fewer, parts)) = without_copies(&commands, sizes, role) else { return all(commands) };
        let least = planned(fewer, ends, &parts.and(&zeros), sizes, &role, room, short);
        if least.places.arena_bytes <= room.arena_bytes {
            return least;
        }
        // Where all of something lies in memory from its first part on, it may be that more does.
        let other = all(commands);
        if other.places.arena_bytes < least.places.arena_bytes { other } else { least }
    };
    let is_much = sizes.iter().fold(0u64, |sum, &size| sum.saturating_add(size)) >= MUCH_ARENA_BYTES;
    let again = is_much.then(|| commands.clone());
    let first = best(commands, Ends::AnyWhere);
    let arena_bytes = first.places.arena_bytes;
    let last = again.filter(|_| arena_bytes >= MUCH_ARENA_BYTES).map(|commands| best(commands, Ends::WithResults));
    last.filter(|last| last.places.arena_bytes < arena_bytes - arena_bytes / LEAST_LESS).unwrap_or(first)
}

/// The part of an arena that makes it worth to write results at the end.
const LEAST_LESS: u64 = 16;

fn planned(
    commands: Vec<Command>,
    ends: Ends,
    parts: &Parts,
    sizes: &[u64],
    role: &impl Fn(u32) -> Role,
    room: Room,
    short: Short,
) -> Schedule {
    let together_bytes = room.together_bytes;
    let count = commands.len();
    let (commands, until) = match ends {
        Ends::AnyWhere => (commands, count),
        Ends::WithResults => results_last(commands, role),
    };
    let mut batch = Buffers { commands: &commands, until, sizes, role, parts, is_late: false, together_bytes };
    let mut order = batch.by_level(0..commands.len(), short);
    let mut chains = batch.chains(&order);
    if batch.live_bytes(&order, &chains).into_iter().any(|bytes| bytes >= MUCH_BYTES) {
        batch.is_late = true;
        order = batch.by_level(0..commands.len(), short);
        let most = |order: &Order| batch.live_bytes(order, &batch.chains(order)).into_iter().max().unwrap_or(0);
        let least = most(&batch.halved(0, short));
        let enough = least + least / MORE_THAN_LEAST;
        if most(&order) > enough {
            order = batch.halved(enough, short);
        }
        chains = batch.chains(&order);
    }
    let mut places = batch.lay_out(&chains);
    if places.arena_bytes > room.arena_bytes {
        (order, places) = batch.narrowed(order, places, room.arena_bytes, short);
        chains = batch.chains(&order);
    }
    let held = batch.peak(&order, &chains);
    let live = batch.live_bytes(&order, &chains);
    let live_bytes = order.iter().map(|&(level, _)| live.get(level).copied().unwrap_or(0)).collect();
    let mut unsorted: Vec<Option<Command>> = commands.into_iter().map(Some).collect();
    let commands: Vec<Command> = order.iter().filter_map(|&(_, i)| unsorted.get_mut(i)?.take()).collect();
    let barriers = barriers(&commands, sizes, &places);
    let wholes = parts.iter().map(|(_, whole, _)| whole).collect();
    Schedule { commands, barriers, places, wholes, held, live_bytes }
}

/// Bytes from which a result is worth making it late, and of all that a batch holds at most, from which any is: what
/// waits for it at a level of its own takes longer.
const LATE_BYTES: u64 = 1 << 20;
const MUCH_BYTES: u64 = 256 << 20;

/// The part of what commands one after the other need that a large batch may need more.
const MORE_THAN_LEAST: u64 = 10;

/// Levels from which it is worth it to make what a late command reads as late as that.
const MANY_LEVELS: usize = 8;

/// Commands one after the other that are made late together, besides what reads the last of them.
const MAX_FOLLOWED: usize = 4;

/// Of the commands that read a tensor, the last ones that are asked how long it is there anyway.
const MAX_READERS: usize = 64;

/// Commands that don't depend on each other side by side, so that one barrier serves many: in the order of how many
/// commands lie between them and the batch's inputs. What depends on nothing waits until shortly before it is needed,
/// and so does what is `late`, which is asked of a command, the last level before it is needed, and the levels of all.
/// Of short ones side by side, what most commands wait for one after the other comes first: an H200 takes 0.2 us to
/// begin each. Those from `until` on, for which nothing waits, come at the last level.
fn by_level(commands: &[Command], until: usize, short: Short, late: impl Fn(usize, usize, &[usize]) -> bool) -> Order {
    #[derive(Default, Clone)]
    struct Use {
        /// What wrote it last: one command, or several that write parts.
        written: Vec<usize>,
        waits: Waits,
        read: Vec<usize>,
    }
    let mut uses: HashMap<u32, Use> = HashMap::new();
    let mut level = vec![0usize; commands.len()];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); commands.len()];
    for (i, command) in commands.iter().enumerate() {
        for id in virtual_ids(&command.reads) {
            before[i].extend(uses.get(&id).iter().flat_map(|used| &used.written));
        }
        for id in virtual_ids(&command.writes) {
            if let Some(used) = uses.get(&id).filter(|used| !are_parts(used.waits, command.waits)) {
                before[i].extend(&used.written);
                before[i].extend(&used.read);
            }
        }
        for id in virtual_ids(&command.reads) {
            uses.entry(id).or_default().read.push(i);
        }
        for id in virtual_ids(&command.writes) {
            let used = uses.entry(id).or_default();
            if !are_parts(used.waits, command.waits) {
                used.written.clear();
            }
            used.written.push(i);
            used.waits = command.waits;
            used.read.clear();
        }
        before[i].retain(|&earlier| earlier != i);
        match i.checked_sub(1).filter(|_| command.waits == Waits::Beside) {
            Some(twin) => (before[i], level[i]) = (before[twin].clone(), level[twin]),
            None => level[i] = before[i].iter().map(|&earlier| level[earlier] + 1).max().unwrap_or(0),
        }
    }
    let mut needed = vec![usize::MAX; commands.len()];
    for i in (0..commands.len()).rev() {
        let latest = needed[i].saturating_sub(1);
        let can_wait = needed[i] != usize::MAX && latest > level[i];
        if can_wait && (before[i].is_empty() || late(i, latest, &level)) {
            level[i] = latest;
        }
        for &earlier in &before[i] {
            needed[earlier] = needed[earlier].min(level[i]);
        }
    }
    let most = level.iter().copied().max().unwrap_or(0);
    level.iter_mut().skip(until).for_each(|level| *level = most);
    // Commands that wait for each, one after the other; twins go together.
    let mut waiting = vec![0usize; commands.len()];
    for i in (0..commands.len()).rev() {
        if let Some(twin) = i.checked_sub(1).filter(|_| commands[i].waits == Waits::Beside) {
            waiting[twin] = waiting[twin].max(waiting[i]);
        }
        for &earlier in &before[i] {
            waiting[earlier] = waiting[earlier].max(waiting[i] + 1);
        }
    }
    for i in 1..commands.len() {
        if commands[i].waits == Waits::Beside {
            waiting[i] = waiting[i - 1];
        }
    }
    let mut sizes = vec![Size::default(); level.iter().max().map_or(0, |most| most + 1)];
    commands.iter().zip(&level).for_each(|(command, &level)| sizes[level].add(command));
    let key =
        |(level, waiting): (usize, usize)| (level, Reverse(if sizes[level].is_within(short) { waiting } else { 0 }));
    let mut order: Vec<_> = level.into_iter().zip(waiting).map(key).zip(0..).collect();
    order.sort_by_key(|(key, _)| *key);
    order.into_iter().map(|((level, _), i)| (level, i)).collect()
}

/// What commands side by side do in all.
#[derive(Debug, Default, Clone, Copy)]
struct Size {
    groups: u64,
    bytes: u64,
    flops: u64,
}

impl Size {
    fn add(&mut self, command: &Command) {
        if let Action::Launch { groups, .. } = &command.action {
            let all = groups.iter().fold(1u64, |all, &n| all.saturating_mul(n.into()));
            self.groups = self.groups.saturating_add(all);
        }
        let work = command.work.unwrap_or_default();
        self.bytes = self.bytes.saturating_add(work.read_bytes).saturating_add(work.written_bytes);
        self.flops = self.flops.saturating_add(work.flops.unwrap_or(u64::MAX));
    }

    /// Whether all of it runs at once and is done in microseconds. Else what is large had better come last, or what
    /// stands behind it would begin when the last of its workgroups have begun.
    fn is_within(&self, short: Short) -> bool {
        self.groups <= short.groups && self.bytes <= short.bytes && self.flops <= short.flops
    }
}

/// The commands of a part of a batch that read each buffer, and those that write it.
struct Uses<'a, F> {
    batch: &'a Buffers<'a, F>,
    commands: &'a [Command],
    readers: HashMap<u32, Vec<usize>>,
    writers: HashMap<u32, Vec<usize>>,
}

impl<F: Fn(u32) -> Role> Uses<'_, F> {
    /// How much longer an operand lies in memory if its reader comes at the level `latest`: bytes times levels. What is
    /// made for this reader alone can be made as late, if what that reads is there, or can be made as late in turn: so
    /// many commands one after the other. All lie in memory side by side then, which only much later is worth it.
    fn longer(&self, id: u32, reader: usize, latest: usize, level: &[usize], followed: usize) -> u128 {
        let readers = self.readers.get(&id).map_or(&[][..], Vec::as_slice);
        let others = readers.iter().rev().take(MAX_READERS).map(|&other| level[other]);
        let last_level = others.max().unwrap_or(0).max(level[reader]);
        let levels = latest.saturating_sub(last_level);
        if levels == 0 || !self.batch.is(id, Role::Intermediate) {
            return 0;
        }
        let follows = |writer: usize| {
            let mut reads = virtual_ids(&self.commands[writer].reads);
            writer != reader && reads.all(|id| self.longer(id, writer, latest - 1, level, followed - 1) == 0)
        };
        let is_much = followed > 0 && latest - level[reader] >= MANY_LEVELS;
        match self.writers.get(&id).map(Vec::as_slice) {
            Some(&[writer]) if is_much && readers.iter().all(|&other| other == reader) && follows(writer) => 0,
            _ => u128::from(self.batch.size(id)) * levels as u128,
        }
    }
}

impl<F: Fn(u32) -> Role> Buffers<'_, F> {
    /// A part of the batch sorted by level.
    fn by_level(&self, part: Range<usize>, short: Short) -> Order {
        let first = part.start;
        let commands = &self.commands[part];
        let mut uses = Uses { batch: self, commands, readers: HashMap::new(), writers: HashMap::new() };
        for (i, command) in commands.iter().enumerate() {
            virtual_ids(&command.reads).for_each(|id| uses.readers.entry(id).or_default().push(i));
            virtual_ids(&command.writes).for_each(|id| uses.writers.entry(id).or_default().push(i));
        }
        // What is made of tensors that others read as late, or that are there anyway, had better not be there before:
        // bytes times levels.
        let late = |i: usize, latest: usize, level: &[usize]| {
            let command = &commands[i];
            let is_own = |place: &BufferRef| place.id().is_some_and(|id| self.is(id, Role::Intermediate));
            let bytes: u64 = virtual_ids(&command.writes).map(|id| self.size(id)).sum();
            let has_twin = command.waits != Waits::All || commands.get(i + 1).is_some_and(|c| c.waits == Waits::Beside);
            let longer = |id: u32| uses.longer(id, i, latest, level, MAX_FOLLOWED);
            let saved = u128::from(bytes) * (latest - level[i]) as u128;
            self.is_late
                && bytes >= LATE_BYTES
                && !has_twin
                && command.writes.iter().all(is_own)
                && 2 * virtual_ids(&command.reads).map(longer).sum::<u128>() <= saved
        };
        by_level(commands, self.until.saturating_sub(first), short, late)
    }

    /// Parts of the batch one after the other, each of which is sorted by level on its own, and the first level of
    /// each.
    fn in_parts(&self, parts: &[Range<usize>], short: Short) -> (Order, Vec<usize>) {
        let mut order = Order::with_capacity(self.commands.len());
        let mut firsts = Vec::with_capacity(parts.len());
        for part in parts {
            let first = order.last().map_or(0, |(level, _)| level + 1);
            firsts.push(first);
            let sorted = self.by_level(part.clone(), short);
            order.extend(sorted.into_iter().map(|(level, i)| (first + level, part.start + i)));
        }
        (order, firsts)
    }

    /// Where a part of the batch is halved: twins stay together.
    fn middle(&self, part: &Range<usize>) -> Option<usize> {
        let middle = part.start.midpoint(part.end);
        let mut near = (middle..part.end).chain((part.start..middle).rev());
        near.find(|&i| i > part.start && self.commands[i].waits != Waits::Beside)
    }

    /// An order at whose levels no more bytes live, or one command after the other: parts of the batch that need more
    /// are halved, so that the others keep what lies side by side.
    fn halved(&self, live_bytes: u64, short: Short) -> Order {
        let mut parts: Vec<Range<usize>> = std::iter::once(0..self.commands.len()).collect();
        loop {
            let (order, firsts) = self.in_parts(&parts, short);
            let live = self.live_bytes(&order, &self.chains(&order));
            let ends = firsts.iter().skip(1).copied().chain([live.len()]);
            let halves = parts.iter().zip(firsts.iter().copied().zip(ends)).flat_map(|(part, (first, end))| {
                let is_over = live[first..end].iter().any(|&bytes| bytes > live_bytes);
                match self.middle(part).filter(|_| is_over) {
                    Some(middle) => [Some(part.start..middle), Some(middle..part.end)],
                    None => [Some(part.clone()), None],
                }
            });
            let halves: Vec<Range<usize>> = halves.flatten().collect();
            if halves.len() == parts.len() {
                return order;
            }
            parts = halves;
        }
    }

    /// An order, and an arena of no more than `enough_bytes`, or than one command after the other needs where that is
    /// more.
    fn narrowed(&self, order: Order, places: Places, enough_bytes: u64, short: Short) -> (Order, Places) {
        let one_by_one = self.halved(0, short);
        let least = self.lay_out(&self.chains(&one_by_one));
        let enough_bytes = enough_bytes.max(least.arena_bytes);
        if places.arena_bytes <= enough_bytes {
            return (order, places);
        }
        let mut live_bytes = enough_bytes;
        for _ in 0..MAX_TRIES {
            let order = self.halved(live_bytes, short);
            let places = self.lay_out(&self.chains(&order));
            if places.arena_bytes <= enough_bytes {
                return (order, places);
            }
            // Buffers of different sizes leave gaps.
            live_bytes = live_bytes.saturating_sub(places.arena_bytes - enough_bytes);
        }
        (one_by_one, least)
    }
}

/// Before which commands a barrier is needed: what they read was written, or what they write was used, since the last
/// one.
fn barriers(commands: &[Command], sizes: &[u64], places: &Places) -> Vec<bool> {
    /// A range of the arena, or of a buffer of its own.
    type Range = (Option<u32>, u64, u64);
    let range = |id: u32| -> Range { places.range(id, sizes.get(id as usize).copied().unwrap_or(0)) };
    let overlaps = |a: &Range, b: &Range| a.1 < b.2 && b.1 < a.2;
    // By what memory they are of.
    let mut read: HashMap<Option<u32>, Vec<Range>> = HashMap::new();
    let mut written: HashMap<Option<u32>, Vec<(Range, Waits)>> = HashMap::new();
    commands
        .iter()
        .map(|command| {
            let reads: Vec<Range> = virtual_ids(&command.reads).map(range).collect();
            let writes: Vec<Range> = virtual_ids(&command.writes).map(range).collect();
            let written_there = |range: &Range| written.get(&range.0).into_iter().flatten();
            let touched = reads.iter().any(|r| written_there(r).any(|(w, _)| overlaps(r, w)))
                || writes.iter().any(|new| {
                    written_there(new).any(|(w, waits)| overlaps(new, w) && !are_parts(*waits, command.waits))
                        || read.get(&new.0).into_iter().flatten().any(|r| overlaps(r, new))
                });
            let waits = touched && command.waits != Waits::Beside;
            if waits {
                read.clear();
                written.clear();
            }
            reads.into_iter().for_each(|range| read.entry(range.0).or_default().push(range));
            writes.into_iter().for_each(|range| written.entry(range.0).or_default().push((range, command.waits)));
            waits
        })
        .collect()
}

#[cfg(test)]
impl Schedule {
    /// Whether the commands lie in the order of their levels, all as one part.
    pub fn is_by_level(&self, short: Short) -> bool {
        by_level(&self.commands, self.commands.len(), short, |_, _, _| false)
            .iter()
            .map(|&(_, i)| i)
            .eq(0..self.commands.len())
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use nx_vulkan_device::work::Work;

    const SHORT: Short = Short { groups: 1000, bytes: 16 << 20, flops: 1 << 28 };

    fn room(arena_bytes: u64) -> Room {
        Room { arena_bytes, together_bytes: 0 }
    }

    fn command(reads: &[u32], writes: u32, waits: Waits) -> Command {
        Command {
            action: Action::Fill { offset_bytes: 0, size_bytes: 256, word: 0 },
            work: None,
            reads: reads.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            writes: SmallVec::from_iter([BufferRef::Virtual(writes)]),
            waits,
            in_place: SmallVec::new(),
            copied_bytes: None,
        }
    }

    /// Buffers of one batch, but for those that keep their memory.
    fn but(is_other: impl Fn(u32) -> bool) -> impl Fn(u32) -> Role {
        move |id| if is_other(id) { Role::Other } else { Role::Intermediate }
    }

    #[test]
    fn what_most_wait_for_comes_first_where_all_is_short() {
        // 2 and 3 are made of 1, 4 of 3; 5 of 4 and 2.
        let order = |flops: u64| {
            let mut commands = vec![
                command(&[0], 1, Waits::All),
                command(&[1], 2, Waits::All),
                command(&[1], 3, Waits::All),
                command(&[3], 4, Waits::All),
                command(&[4, 2], 5, Waits::All),
            ];
            commands.iter_mut().for_each(|c| c.work = Some(Work { flops: Some(flops), ..Work::default() }));
            let schedule = schedule(commands, &[256; 6], but(|id| id == 0 || id == 5), room(u64::MAX), SHORT);
            schedule.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect::<Vec<u32>>()
        };
        assert_eq!(order(1000), [1, 3, 2, 4, 5]);
        assert_eq!(order(SHORT.flops), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_large_is_made_when_it_is_needed() {
        // Of the input 0 and the word 1 the large 2, which the last reads; 3 to 6 one after the other; 7 of 3, which
        // nothing else reads.
        let large = 512 << 20;
        let commands = |size_bytes: u64| {
            let commands = vec![
                command(&[], 1, Waits::All),
                command(&[0, 1], 2, Waits::All),
                command(&[0], 3, Waits::All),
                command(&[0], 4, Waits::All),
                command(&[4], 5, Waits::All),
                command(&[5], 6, Waits::All),
                command(&[3], 7, Waits::All),
                command(&[2, 6, 7], 8, Waits::All),
            ];
            let sizes = [size_bytes, 256, size_bytes, size_bytes, 256, 256, 256, size_bytes, 256];
            let schedule = schedule(commands, &sizes, but(|id| id == 0 || id == 8), room(u64::MAX), SHORT);
            let writes: Vec<u32> = schedule.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect();
            let before = |id: u32, other: u32| {
                let at = |id: u32| writes.iter().position(|&written| written == id).unwrap();
                at(id) < at(other)
            };
            (before(2, 5), before(7, 6), schedule.held.iter().map(|held| held.size_bytes).sum::<u64>())
        };
        let (is_early, _, held) = commands(large);
        assert!(!is_early && held <= 2 * large + 4096, "{held}");
        // What takes little is made as soon as it can be, and so is all where the batch holds little.
        assert!(commands(1 << 20).0);
    }

    #[test]
    fn chains_of_what_is_large_are_made_when_they_are_needed() {
        // 1 to 3 one after the other of the input 0, which only the last command reads; 4 to 23 are there before it,
        // each for the next.
        let large = 512 << 20;
        let mut commands: Vec<Command> = (0..3).map(|id| command(&[id], id + 1, Waits::All)).collect();
        commands.extend((4..24).map(|id| command(&[if id == 4 { 0 } else { id - 1 }], id, Waits::All)));
        commands.push(command(&[3, 23], 24, Waits::All));
        let mut sizes = vec![256; 25];
        sizes[1..4].fill(large);
        let schedule = schedule(commands, &sizes, but(|id| id == 0 || id == 24), room(u64::MAX), SHORT);
        let written: Vec<u32> = schedule.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect();
        let at = |id: u32| written.iter().position(|&other| other == id).unwrap();
        assert!(at(1) > at(20) && at(1) < at(2) && at(2) < at(3), "{written:?}");
    }

    #[test]
    fn commands_that_take_turns_do_not_wait_for_each_other() {
        // 1 is made of 0, 2 by one of two commands, 3 and 4 by others, and 5 of 2.
        let commands = vec![
            command(&[0], 1, Waits::All),
            command(&[0, 1], 2, Waits::All),
            command(&[0, 1], 2, Waits::Beside),
            command(&[0], 3, Waits::All),
            command(&[3], 4, Waits::All),
            command(&[2, 4], 5, Waits::All),
        ];
        let sizes = [256; 6];
        let schedule = schedule(commands, &sizes, but(|id| id == 0 || id == 5), room(u64::MAX), SHORT);
        let writes: Vec<u32> = schedule.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect();
        let at = |waits: Waits| schedule.commands.iter().position(|c| c.waits == waits && c.writes[0].id() == Some(2));
        let (one, other) = (at(Waits::All).unwrap(), at(Waits::Beside).unwrap());
        assert_eq!(other, one + 1, "{writes:?}");
        assert!(!schedule.barriers[other]);
        let reader = writes.iter().position(|&id| id == 5).unwrap();
        assert!(schedule.barriers[other + 1..=reader].contains(&true), "{writes:?} {:?}", schedule.barriers);
        // Neither may find its results where what it reads lies.
        assert_ne!(schedule.places.arena[&1], schedule.places.arena[&2]);
    }

    #[test]
    fn parts_of_a_tensor_wait_for_what_they_read_alone() {
        // 4 has parts of 1, 2, and 3, which is made of 2; 5 is made of 4, and 6 has parts of its own.
        let commands = vec![
            command(&[0], 1, Waits::All),
            command(&[0], 2, Waits::All),
            command(&[2], 3, Waits::All),
            command(&[1], 4, Waits::Part(1)),
            command(&[2], 4, Waits::Part(1)),
            command(&[3], 4, Waits::Part(1)),
            command(&[4], 5, Waits::All),
            command(&[5], 6, Waits::Part(2)),
            command(&[5], 6, Waits::Part(2)),
        ];
        let schedule = schedule(commands, &[256; 7], but(|id| id == 0 || id == 6), room(u64::MAX), SHORT);
        let barriers = schedule.barriers.iter().filter(|&&waits| waits).count();
        assert_eq!(barriers, 4, "{:?} {:?}", schedule.commands, schedule.barriers);
        let written: Vec<u32> = schedule.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect();
        let last_part = written.iter().rposition(|&id| id == 4).unwrap();
        let reader = written.iter().position(|&id| id == 5).unwrap();
        assert!(last_part < reader && schedule.barriers[reader], "{written:?} {:?}", schedule.barriers);
        let last = schedule.places.arena.iter().filter(|(id, at)| **id != 4 && **at == schedule.places.arena[&4]);
        assert!(
            last.into_iter().all(|(&id, _)| id == 5),
            "what is read for a part lies elsewhere: {:?}",
            schedule.places.arena
        );
    }

    /// Branches of three commands each on an input of their own size, whose results are added up one after the other.
    fn branches(n: u32) -> (Vec<Command>, Vec<u64>, impl Fn(u32) -> bool) {
        let mut commands = Vec::new();
        for branch in 0..n {
            let id = 1 + 4 * branch;
            commands.push(command(&[0], id, Waits::All));
            commands.push(command(&[id], id + 1, Waits::All));
            commands.push(command(&[id + 1], id + 2, Waits::All));
            let sum = if branch == 0 { 0 } else { id - 1 };
            commands.push(command(&[sum, id + 2], id + 3, Waits::All));
        }
        let last = 4 * n;
        (commands, vec![1024; last as usize + 1], move |id| id == 0 || id == last)
    }

    fn count(barriers: &[bool]) -> usize {
        barriers.iter().filter(|&&waits| waits).count()
    }

    #[test]
    fn an_arena_takes_as_little_as_it_has_to() {
        let planned = |enough_bytes: u64| {
            let (commands, sizes, is_own) = branches(32);
            schedule(commands, &sizes, but(is_own), room(enough_bytes), SHORT)
        };
        let wide = planned(u64::MAX);
        assert!(wide.places.arena_bytes >= 32 * 1024, "{}", wide.places.arena_bytes);
        let narrow = planned(3 * 1024);
        assert_eq!(narrow.places.arena_bytes, 3 * 1024);
        // Less than one after the other needs is not to be had.
        assert_eq!(planned(0).places.arena_bytes, 3 * 1024);
        // With more memory more lies side by side.
        let between = planned(12 * 1024);
        assert!((3 * 1024..=12 * 1024).contains(&between.places.arena_bytes), "{}", between.places.arena_bytes);
        let barriers = [&wide, &between, &narrow].map(|schedule| count(&schedule.barriers));
        assert!(barriers[0] < barriers[1] && barriers[1] < barriers[2], "{barriers:?}");
        // As much as is needed changes nothing.
        let enough = planned(wide.places.arena_bytes);
        assert_eq!((enough.places.arena_bytes, &enough.barriers), (wide.places.arena_bytes, &wide.barriers));
        assert_eq!([wide, between, narrow].map(|schedule| schedule.is_by_level(SHORT)), [true, false, false]);
    }

    #[test]
    fn only_the_part_that_takes_much_is_narrowed() {
        // Sixteen small branches, then sixteen large ones.
        let (commands, mut sizes, is_own) = branches(32);
        sizes[..=64].fill(256);
        sizes[65..].fill(1 << 20);
        let wide = schedule(commands.clone(), &sizes, but(&is_own), room(u64::MAX), SHORT);
        let narrow = schedule(commands, &sizes, but(is_own), room((3 << 20) + 256), SHORT);
        assert!(wide.places.arena_bytes >= 16 << 20 && narrow.places.arena_bytes <= (3 << 20) + 256);
        let first = narrow.commands.iter().position(|c| c.writes[0].id().is_some_and(|id| id > 64)).unwrap();
        // One after the other the small ones have 63.
        assert!(count(&narrow.barriers[..first]) < 24, "{:?}", narrow.barriers);
    }

    #[test]
    fn orders_of_little_memory_keep_twins_and_parts() {
        // Each branch ends in one of two commands, and makes a part of the last buffer.
        let n = 24u32;
        let mut commands = Vec::new();
        for branch in 0..n {
            let id = 1 + 2 * branch;
            commands.push(command(&[0], id, Waits::All));
            commands.push(command(&[id, 0], id + 1, Waits::All));
            commands.push(command(&[id, 0], id + 1, Waits::Beside));
            commands.push(command(&[id + 1], 2 * n + 1, Waits::Part(1)));
        }
        let sizes = vec![512; 2 * n as usize + 2];
        let is_own = |id: u32| id == 0 || id == 2 * n + 1;
        for enough_bytes in [0, 1024, 1500, 4096, 8192, u64::MAX] {
            let schedule = schedule(commands.clone(), &sizes, but(is_own), room(enough_bytes), SHORT);
            assert!(
                schedule.places.arena_bytes <= enough_bytes.max(1024),
                "{} of {enough_bytes}",
                schedule.places.arena_bytes
            );
            assert_eq!(schedule.commands.len(), commands.len());
            let mut values: HashMap<u64, u32> = HashMap::new();
            for (i, command) in schedule.commands.iter().enumerate() {
                let written = command.writes[0].id().unwrap();
                if command.waits == Waits::Beside {
                    assert_eq!(schedule.commands[i - 1].writes[0].id(), Some(written), "twins go together");
                    assert!(!schedule.barriers[i]);
                }
                // What a command reads is still there.
                for id in virtual_ids(&command.reads).filter(|&id| !is_own(id)) {
                    assert_eq!(
                        values.get(&schedule.places.arena[&id]),
                        Some(&id),
                        "command {i} of {enough_bytes} bytes"
                    );
                }
                values.extend(schedule.places.arena.get(&written).map(|&at| (at, written)));
            }
        }
    }

    /// Numbers that look random, of one seed.
    fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        }
    }

    /// A step of training: layers forwards, whose results the gradients read, backwards, with some that skip layers,
    /// results of their own and steps within layers. 0 is the input; gradients by parameters are results of the batch.
    fn layers(seed: u64) -> (Vec<Command>, Vec<u64>, HashMap<u32, Role>) {
        let mut number = numbers(seed);
        let (mut commands, mut sizes, mut roles) = (Vec::new(), vec![64 << 20], HashMap::from([(0, Role::Other)]));
        let made = |sizes: &mut Vec<u64>, commands: &mut Vec<Command>, reads: &[u32], bytes: u64| {
            let id = sizes.len() as u32;
            sizes.push(bytes);
            commands.push(command(reads, id, Waits::All));
            id
        };
        let mut kept: Vec<(u32, u32, u64)> = Vec::new();
        let mut x = 0;
        for _ in 0..20 + number(20) {
            let bytes = (1 + number(64)) << 20;
            let wide = made(&mut sizes, &mut commands, &[x], bytes * (1 + number(3)));
            let skipped = kept.len().checked_sub(1 + number(4) as usize).map_or(x, |at| kept[at].1);
            let next = made(&mut sizes, &mut commands, &[wide, skipped], bytes);
            kept.push((wide, next, bytes));
            x = next;
        }
        let mut gradient = x;
        for &(wide, next, bytes) in kept.iter().rev() {
            let split = made(&mut sizes, &mut commands, &[gradient, next], bytes * (1 + number(2)));
            let by_weights = made(&mut sizes, &mut commands, &[split, wide], (1 + number(32)) << 20);
            let bytes_of_weights = sizes[by_weights as usize];
            let updated = made(&mut sizes, &mut commands, &[by_weights], bytes_of_weights);
            roles.insert(updated, Role::Result);
            gradient = made(&mut sizes, &mut commands, &[split, wide, gradient], bytes);
        }
        (commands, sizes, roles)
    }

    #[test]
    fn steps_of_training_take_little_more_than_their_commands_one_by_one() {
        for seed in 0..200 {
            let (commands, sizes, roles) = layers(seed);
            let role = |id: u32| roles.get(&id).copied().unwrap_or(Role::Intermediate);
            // The most that is there at once where commands run as they come, and nothing is side by side.
            let mut last: HashMap<u32, usize> = HashMap::new();
            for (at, command) in commands.iter().enumerate() {
                last.extend(command.ids().map(|id| (id, at)));
            }
            let (mut there, mut in_turn) = (0u64, 0);
            for (at, command) in commands.iter().enumerate() {
                let is_own = |id: &u32| role(*id) == Role::Intermediate;
                there += virtual_ids(&command.writes).filter(is_own).map(|id| sizes[id as usize]).sum::<u64>();
                in_turn = in_turn.max(there);
                let mut ids: Vec<u32> = command.ids().filter(|id| is_own(id) && last[id] == at).collect();
                ids.sort_unstable();
                ids.dedup();
                there -= ids.into_iter().map(|id| sizes[id as usize]).sum::<u64>();
            }
            for arena_bytes in [in_turn, u64::MAX] {
                let schedule = schedule(commands.clone(), &sizes, role, room(arena_bytes), SHORT);
                let taken = schedule.places.arena_bytes.max(schedule.live_bytes.into_iter().max().unwrap());
                assert!(taken <= in_turn + in_turn / MORE_THAN_LEAST, "{seed}: {taken}, and {in_turn} one by one");
            }
        }
    }

    #[test]
    fn results_are_written_last_where_others_have_their_memory_until_then() {
        const MIB: u64 = 1 << 20;
        // An input, what is kept of it, a gradient and what is made of that, what is made of the first, and two more.
        let sizes = [MIB, 60 * MIB, 20 * MIB, 60 * MIB, 60 * MIB, MIB, MIB];
        let role = |id: u32| match id {
            0 => Role::Other,
            3 | 6 => Role::Result,
            _ => Role::Intermediate,
        };
        let commands = || {
            vec![
                command(&[0], 1, Waits::All),
                command(&[0], 2, Waits::All),
                command(&[2, 0], 3, Waits::All),
                command(&[1], 4, Waits::All),
                command(&[4, 1], 5, Waits::All),
                command(&[5], 6, Waits::All),
            ]
        };
        let place = |schedule: &Schedule| {
            let writes = |command: &Command| virtual_ids(&command.writes).any(|id| id == 3);
            schedule.commands.iter().position(writes).unwrap()
        };
        let last = schedule(commands(), &sizes, role, room(u64::MAX), SHORT);
        assert!(place(&last) >= 4 && last.places.arena_bytes <= 82 * MIB, "{} bytes", last.places.arena_bytes);
        assert!(last.places.within.values().any(|&(result, _)| result == 3));
        // An arena of less is not worth it.
        let sizes = sizes.map(|size| size / 16);
        let first = schedule(commands(), &sizes, role, room(u64::MAX), SHORT);
        assert!(place(&first) < 4);
    }
}
