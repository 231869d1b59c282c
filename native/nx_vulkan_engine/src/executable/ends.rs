//! Results that nothing reads are written last, where others have their memory until then.

use std::collections::{HashMap, HashSet};

use nx_vulkan_device::capture::{BufferRef, Command};
use nx_vulkan_device::kernel::Waits;

use super::arena::Role;

/// How a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// Every command comes as soon as what it reads is there, but for what is made late.
    AnyWhere,
    /// With the commands that write results which nothing reads.
    WithResults,
}

/// The commands with those at the end that write results of which nothing reads anything, and how many come before
/// these: what they read is often less than what they write, and others have the memory of results until then.
pub(super) fn results_last(commands: Vec<Command>, role: impl Fn(u32) -> Role) -> (Vec<Command>, usize) {
    let read: HashSet<u32> =
        commands.iter().flat_map(|command| command.reads.iter().filter_map(BufferRef::id)).collect();
    // The commands that write each buffer.
    let mut writers: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, command) in commands.iter().enumerate() {
        command.writes.iter().filter_map(BufferRef::id).for_each(|id| writers.entry(id).or_default().push(at));
    }
    let is_last = |at: usize| {
        let command = &commands[at];
        let written_by = |id: u32| writers.get(&id).map_or(&[][..], Vec::as_slice);
        let is_result = |place: &BufferRef| {
            place.id().is_some_and(|id| role(id) == Role::Result && !read.contains(&id) && written_by(id).len() == 1)
        };
        // What is read stays what it is.
        let stays = |id: u32| role(id) != Role::Result && written_by(id).iter().all(|&writer| writer < at);
        let has_twin = commands.get(at + 1).is_some_and(|next| next.waits == Waits::Beside);
        command.waits == Waits::All
            && !has_twin
            && !command.writes.is_empty()
            && command.writes.iter().all(is_result)
            && command.reads.iter().filter_map(BufferRef::id).all(stays)
    };
    let ends: Vec<bool> = (0..commands.len()).map(is_last).collect();
    let (mut before, mut last) = (Vec::with_capacity(commands.len()), Vec::new());
    for (command, ends) in commands.into_iter().zip(ends) {
        if ends { last.push(command) } else { before.push(command) }
    }
    let until = before.len();
    before.append(&mut last);
    (before, until)
}
