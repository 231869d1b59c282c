//! The order of a batch's commands, where their intermediate results lie, and which commands wait for earlier ones.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::capture::{Action, Command, Place};
use crate::kernel::Waits;

/// Where buffers lie in the arena begins at multiples of this.
const ALIGN_BYTES: u64 = 256;

/// What commands side by side are short with: eight workgroups for each multiprocessor of an H200, and some 4 and 8 us of its memory and arithmetic.
const MAX_SHORT_GROUPS: u64 = 8 * 132;
const MAX_SHORT_BYTES: u64 = 16 << 20;
const MAX_SHORT_FLOPS: u64 = 1 << 28;

/// Whether two launches write parts of the same.
fn are_parts(one: Waits, other: Waits) -> bool {
    matches!(one, Waits::Part(_)) && one == other
}

/// A batch whose intermediate results have places in an arena.
#[derive(Debug)]
pub(super) struct Plan {
    pub commands: Vec<Command>,
    /// Whether a barrier comes before each command.
    pub barriers: Vec<bool>,
    /// Offsets in the arena by number of buffer.
    pub arena: HashMap<u32, u64>,
    pub arena_bytes: u64,
}

fn virtual_ids(places: &[Place]) -> impl Iterator<Item = u32> + '_ {
    places.iter().filter_map(Place::id)
}

/// Plans a batch. Buffers for which `is_own` holds have memory of their own, the others live in the arena.
pub(super) fn plan(commands: Vec<Command>, sizes: &[u64], is_own: impl Fn(u32) -> bool) -> Plan {
    let (levels, commands) = by_level(commands);
    let (arena, arena_bytes) = lay_out(&levels, &commands, sizes, is_own);
    let barriers = barriers(&commands, sizes, &arena);
    Plan { commands, barriers, arena, arena_bytes }
}

/// Commands that don't depend on each other side by side, so that one barrier serves many: in the order of how many commands lie
/// between them and the batch's inputs. What depends on nothing waits until shortly before it is needed. Of short ones side by side, what
/// most commands wait for one after the other comes first: an H200 takes 0.2 us to begin each. Answers the levels, too.
fn by_level(commands: Vec<Command>) -> (Vec<usize>, Vec<Command>) {
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
        if before[i].is_empty() && needed[i] != usize::MAX {
            level[i] = needed[i].saturating_sub(1);
        }
        for &earlier in &before[i] {
            needed[earlier] = needed[earlier].min(level[i]);
        }
    }
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
    let key = |(level, waiting): (usize, usize)| (level, Reverse(if sizes[level].is_short() { waiting } else { 0 }));
    let mut order: Vec<_> = level.into_iter().zip(waiting).map(key).zip(commands).collect();
    order.sort_by_key(|(key, _)| *key);
    order.into_iter().map(|((level, _), command)| (level, command)).unzip()
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
        self.flops = self.flops.saturating_add(work.flops.unwrap_or(MAX_SHORT_FLOPS + 1));
    }

    /// Whether all of it runs at once on a large GPU and is done in microseconds. Elsewhere what is large had better come last, or what stands behind it
    /// would begin when the last of its workgroups have begun.
    fn is_short(&self) -> bool {
        self.groups <= MAX_SHORT_GROUPS && self.bytes <= MAX_SHORT_BYTES && self.flops <= MAX_SHORT_FLOPS
    }
}

/// Offsets for buffers that are needed at the same level beside each other, the largest first, each as low as it fits.
fn lay_out(
    levels: &[usize],
    commands: &[Command],
    sizes: &[u64],
    is_own: impl Fn(u32) -> bool,
) -> (HashMap<u32, u64>, u64) {
    let mut spans: HashMap<u32, (usize, usize)> = HashMap::new();
    for (&level, command) in levels.iter().zip(commands) {
        for id in command.ids().filter(|&id| !is_own(id)) {
            spans.entry(id).or_insert((level, level)).1 = level;
        }
    }
    let size = |id: u32| sizes.get(id as usize).copied().unwrap_or(0).max(1).next_multiple_of(ALIGN_BYTES);
    let mut order: Vec<(u32, (usize, usize))> = spans.into_iter().collect();
    order.sort_by_key(|&(id, span)| (std::cmp::Reverse(size(id)), span.0, id));
    let mut placed: Vec<(u64, u64, (usize, usize))> = Vec::with_capacity(order.len());
    let mut arena = HashMap::with_capacity(order.len());
    let mut total = 0;
    for (id, span) in order {
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|(_, _, other)| other.0 <= span.1 && span.0 <= other.1)
            .map(|&(begin, end, _)| (begin, end))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (begin, end) in taken {
            if begin >= at + size(id) {
                break;
            }
            at = at.max(end);
        }
        placed.push((at, at + size(id), span));
        arena.insert(id, at);
        total = total.max(at + size(id));
    }
    (arena, total)
}

/// Before which commands a barrier is needed: what they read was written, or what they write was used, since the last one.
fn barriers(commands: &[Command], sizes: &[u64], arena: &HashMap<u32, u64>) -> Vec<bool> {
    /// A range of the arena, or of a buffer of its own.
    type Range = (Option<u32>, u64, u64);
    let range = |id: u32| -> Range {
        let size = sizes.get(id as usize).copied().unwrap_or(0).max(1);
        match arena.get(&id) {
            Some(&at) => (None, at, at + size.next_multiple_of(ALIGN_BYTES)),
            None => (Some(id), 0, size),
        }
    };
    let overlaps = |a: &Range, b: &Range| a.0 == b.0 && a.1 < b.2 && b.1 < a.2;
    let (mut read, mut written): (Vec<Range>, Vec<(Range, Waits)>) = (Vec::new(), Vec::new());
    commands
        .iter()
        .map(|command| {
            let reads: Vec<Range> = virtual_ids(&command.reads).map(range).collect();
            let writes: Vec<Range> = virtual_ids(&command.writes).map(range).collect();
            let touched = reads.iter().any(|r| written.iter().any(|(w, _)| overlaps(r, w)))
                || writes.iter().any(|new| {
                    written.iter().any(|(w, waits)| overlaps(new, w) && !are_parts(*waits, command.waits))
                        || read.iter().any(|r| overlaps(r, new))
                });
            let waits = touched && command.waits != Waits::Beside;
            if waits {
                read.clear();
                written.clear();
            }
            read.extend(reads);
            written.extend(writes.into_iter().map(|range| (range, command.waits)));
            waits
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::kernel::launch::Work;

    fn command(reads: &[u32], writes: u32, waits: Waits) -> Command {
        Command {
            action: Action::Copy { from_bytes: 0, to_bytes: 0, size_bytes: 256 },
            work: None,
            reads: reads.iter().map(|&id| Place::Virtual(id)).collect(),
            writes: SmallVec::from_iter([Place::Virtual(writes)]),
            waits,
        }
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
            let plan = plan(commands, &[256; 6], |id| id == 0 || id == 5);
            plan.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect::<Vec<u32>>()
        };
        assert_eq!(order(1000), [1, 3, 2, 4, 5]);
        assert_eq!(order(MAX_SHORT_FLOPS), [1, 2, 3, 4, 5]);
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
        let plan = plan(commands, &sizes, |id| id == 0 || id == 5);
        let writes: Vec<u32> = plan.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect();
        let at = |waits: Waits| plan.commands.iter().position(|c| c.waits == waits && c.writes[0].id() == Some(2));
        let (one, other) = (at(Waits::All).unwrap(), at(Waits::Beside).unwrap());
        assert_eq!(other, one + 1, "{writes:?}");
        assert!(!plan.barriers[other]);
        let reader = writes.iter().position(|&id| id == 5).unwrap();
        assert!(plan.barriers[other + 1..=reader].contains(&true), "{writes:?} {:?}", plan.barriers);
        // Neither may find its results where what it reads lies.
        assert_ne!(plan.arena[&1], plan.arena[&2]);
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
        let plan = plan(commands, &[256; 7], |id| id == 0 || id == 6);
        let barriers = plan.barriers.iter().filter(|&&waits| waits).count();
        assert_eq!(barriers, 4, "{:?} {:?}", plan.commands, plan.barriers);
        let written: Vec<u32> = plan.commands.iter().flat_map(|c| virtual_ids(&c.writes)).collect();
        let last_part = written.iter().rposition(|&id| id == 4).unwrap();
        let reader = written.iter().position(|&id| id == 5).unwrap();
        assert!(last_part < reader && plan.barriers[reader], "{written:?} {:?}", plan.barriers);
        let last = plan.arena.iter().filter(|(id, at)| **id != 4 && **at == plan.arena[&4]);
        assert!(last.into_iter().all(|(&id, _)| id == 5), "what is read for a part lies elsewhere: {:?}", plan.arena);
    }
}
