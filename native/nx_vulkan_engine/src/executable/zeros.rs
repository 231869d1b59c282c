//! Words that kernels raise, as whether an operand has elements that matrix units can't take: one fill makes zeros of
//! all that a batch has.

use std::collections::HashSet;

use nx_vulkan_device::capture::{Action, BufferRef, Command};
use nx_vulkan_device::work::Work;
use smallvec::SmallVec;

use super::arena::{ALIGN_BYTES, Role};
use super::parts::Parts;

/// What is larger is no word or two that kernels raise.
const MAX_BYTES: u64 = 16;

/// The commands with one fill in the place of many, which writes all of their buffers, the sizes of buffers, the last
/// of which the fill's parts lie in, and these parts; none where there are too few.
pub(super) fn filled_at_once(
    commands: &[Command],
    sizes: &[u64],
    role: impl Fn(u32) -> Role,
) -> Option<(Vec<Command>, Vec<u64>, Parts)> {
    // What decides about commands, and what may come to lie in something larger, stays as it is.
    let is_copy = |command: &&Command| command.copied_bytes.is_some() || matches!(command.action, Action::Copy { .. });
    let copied = commands.iter().filter(is_copy).filter_map(Command::read);
    let mut used: HashSet<u32> = commands.iter().filter_map(Command::decided_by).chain(copied).collect();
    let mut words: Vec<u32> = Vec::new();
    let mut fills: HashSet<usize> = HashSet::new();
    for (at, command) in commands.iter().enumerate() {
        let word = zeroed(command, sizes).filter(|&id| role(id) == Role::Intermediate && !used.contains(&id));
        if let Some(id) = word {
            words.push(id);
            fills.insert(at);
        }
        used.extend(command.ids());
    }
    if words.len() < 2 {
        return None;
    }
    let whole = sizes.len() as u32;
    let size_bytes = words.len() as u64 * ALIGN_BYTES;
    let mut parts = Parts::default();
    words.iter().zip(0..).for_each(|(&word, k)| parts.add(word, whole, k * ALIGN_BYTES));
    let fill = Command {
        action: Action::Fill { offset_bytes: 0, size_bytes, word: 0 },
        work: Some(Work { written_bytes: size_bytes, flops: Some(0), ..Work::default() }),
        reads: SmallVec::new(),
        writes: std::iter::once(whole).chain(words).map(BufferRef::Virtual).collect(),
        waits: Default::default(),
        in_place: SmallVec::new(),
        copied_bytes: None,
    };
    let left = commands.iter().enumerate().filter(|(at, _)| !fills.contains(at)).map(|(_, command)| command.clone());
    let commands = std::iter::once(fill).chain(left).collect();
    Some((commands, sizes.iter().copied().chain([size_bytes]).collect(), parts))
}

/// The small buffer of which a command makes zeros.
fn zeroed(command: &Command, sizes: &[u64]) -> Option<u32> {
    let Action::Fill { offset_bytes: 0, size_bytes, word: 0 } = command.action else { return None };
    let id = command.written()?;
    let own_bytes = sizes.get(id as usize).copied()?;
    (own_bytes <= size_bytes && own_bytes <= MAX_BYTES && command.reads.is_empty()).then_some(id)
}

/// Whether a command makes zeros of several buffers at once.
pub(super) fn fills_at_once(command: &Command) -> bool {
    matches!(command.action, Action::Fill { .. }) && command.writes.len() > 1
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nx_vulkan_device::kernel::Waits;

    use super::super::schedule::{Room, schedule};
    use super::*;
    use crate::tuning::Short;

    const SHORT: Short = Short { groups: 1000, bytes: 16 << 20, flops: 1 << 28 };
    const ROOM: Room = Room { arena_bytes: u64::MAX, together_bytes: 0 };

    fn command(action: Action, reads: &[u32], writes: &[u32]) -> Command {
        Command {
            action,
            work: None,
            reads: reads.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            writes: writes.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            waits: Waits::All,
            in_place: SmallVec::new(),
            copied_bytes: None,
        }
    }

    fn fill(id: u32, size_bytes: u64, word: u32) -> Command {
        command(Action::Fill { offset_bytes: 0, size_bytes, word }, &[], &[id])
    }

    fn kernel(reads: &[u32], writes: &[u32]) -> Command {
        command(Action::Copy { from_bytes: 0, to_bytes: 0, size_bytes: 0 }, reads, writes)
    }

    #[test]
    fn words_are_filled_at_once_where_nothing_else_has_been() {
        // An input, two words that kernels raise, what they write, and a result.
        let sizes = [256, 4, 4, 256, 256, 4];
        let role = |id: u32| if id == 0 || id == 5 { Role::Other } else { Role::Intermediate };
        let commands = vec![
            fill(1, 4, 0),
            kernel(&[0], &[3, 1]),
            fill(2, 4, 0),
            kernel(&[3], &[4, 2]),
            kernel(&[3, 4, 1, 2], &[5]),
        ];
        let planned = schedule(commands.clone(), &sizes, role, ROOM, SHORT);
        let fills: Vec<&Command> = planned.commands.iter().filter(|command| fills_at_once(command)).collect();
        assert_eq!((planned.commands.len(), fills.len()), (4, 1));
        assert!(matches!(fills[0].action, Action::Fill { offset_bytes: 0, size_bytes: 512, word: 0 }));
        let at = |id: u32| planned.places.arena[&id];
        let whole = fills[0].written().unwrap();
        assert_eq!([at(1) - at(whole), at(2) - at(whole)], [0, 256]);
        // Whoever raises a word waits for the fill.
        let raises = planned.commands.iter().position(|command| command.ids().any(|id| id == 3)).unwrap();
        assert!(planned.barriers[raises] && planned.commands[..raises].iter().any(fills_at_once));
        // What lies in the place of others does not touch the words while these are needed.
        for id in [3, 4] {
            assert!(at(id) + 256 <= at(whole) || at(whole) + 512 <= at(id));
        }
        let kept = |commands: Vec<Command>| filled_at_once(&commands, &sizes, role).is_none();
        // One word, other numbers, results, parts, and what was used before.
        assert!(kept(commands[..2].to_vec()));
        assert!(kept(vec![fill(1, 4, 0), fill(2, 4, 7)]));
        assert!(kept(vec![fill(1, 4, 0), fill(5, 4, 0)]));
        assert!(kept(vec![fill(1, 4, 0), fill(3, 256, 0)]));
        assert!(kept(vec![fill(1, 4, 0), kernel(&[0], &[2]), fill(2, 4, 0)]));
    }
}
