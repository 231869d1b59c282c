//! Makes groups of instructions that one kernel can compute: elementwise ops with the views between them, and
//! reductions with what comes before and after. Instructions are taken from the last to the first, and each joins the
//! groups that read it where [`Plan::of`] finds a kernel for the whole; what is cheap is computed again in each of
//! several groups.

mod siblings;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};

use smallvec::SmallVec;

use super::clusters::{Bodies, Cluster, Numbers};
use super::quick::{compiles_soon, cost};
use super::rewrite::Rewriter;
use super::target::{Saving, Target};
use crate::program::fused::{MAX_STORES, Plan, chosen, is_view};
use crate::program::ops::keeps_bits;
use crate::program::reductions::Reductions;
use crate::program::{Binary, Instruction, Op, Operand, Program, epilogue};
use crate::{DType, Error, Result, Type};

/// The part of a kernel's largest operand or result up to which operands take little memory.
const MAX_SMALL: u64 = 16;

/// Cheap steps after each other that are computed again in each of several kernels, or for several elements: memory
/// takes less time for what more of them give.
const MAX_AGAIN: u32 = 24;

/// The part of a large result from which one that is stored anyway is read where that takes fewer bytes: kernels of
/// less would wait for another one to no end.
const LEAST_READ: u64 = 64;

/// Elements of a kernel for each of an op's, up to which more steps than that are computed again.
const MAX_REPEATED: u64 = 2;

/// Instructions that join a group at once, at most.
const MAX_AT_ONCE: usize = 64;

/// Whether a kernel keeps no more alive than its ops one by one do: it reads two large operands at most, as an op does
/// that has one result.
fn keeps_little(body: &Program) -> bool {
    let bytes = |ty: &Type| ty.elements().saturating_mul(ty.dtype.size_bytes());
    let largest = body.inputs.iter().chain(body.output_types()).map(bytes).max().unwrap_or(0);
    body.inputs.iter().filter(|ty| bytes(ty) > largest / MAX_SMALL).count() <= 2
}

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    Fusion::new(program, target, false).run()
}

/// Fuses so that kernels which reduce do so once, and nothing else behind it.
pub fn apart(program: &Program, target: &Target) -> Result<Program> {
    Fusion::new(program, target, true).run()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    View,
    /// A constant, or counted from indices.
    Source,
    /// The flag says that it costs little enough to be computed twice.
    Elementwise {
        cheap: bool,
    },
    Reduce,
    /// Parts of something larger, chosen by the index.
    Placement,
    Other,
}

struct Fusion<'a> {
    program: &'a Program,
    target: &'a Target,
    /// Whether kernels that reduce do so once, and nothing else behind it.
    apart: bool,
    bodies: Bodies<'a>,
    kinds: Vec<Role>,
    /// The instructions that read each.
    users: Vec<Vec<usize>>,
    /// Cheap steps after each other that end with each instruction.
    steps: Vec<u32>,
    groups: Vec<Option<Cluster>>,
    /// The groups with a member that reads the instruction, and without the instruction.
    readers: Vec<BTreeSet<usize>>,
    /// How often each operand is read, by outputs too.
    reads: HashMap<Operand, usize>,
    /// Whether something that is in no group reads it.
    outside: Vec<bool>,
    /// Whether it stands in the program by itself, be it beside groups that compute it, too.
    lone: Vec<bool>,
    /// The group that stores the instruction's result.
    owners: Vec<Option<usize>>,
    /// [`Cluster::detour`] of each group that has one.
    detours: BTreeSet<(usize, usize)>,
    /// Whether the program has so many small ops that their kernels are kept small.
    is_long: bool,
}

impl<'a> Fusion<'a> {
    fn new(program: &'a Program, target: &'a Target, apart: bool) -> Fusion<'a> {
        let count = program.instructions.len();
        let ty = program.types();
        let dtype = |&operand: &Operand| ty(operand).map_or(DType::U32, |ty| ty.dtype);
        let kind = |instruction: &Instruction| {
            let [out] = instruction.outs.as_slice() else { return Role::Other };
            if out.elements() == 0 {
                return Role::Other;
            }
            match &instruction.op {
                Op::Reduce { .. } => Role::Reduce,
                Op::Bitcast => Role::Other,
                Op::Constant(_) | Op::Iota { .. } | Op::Eye => Role::Source,
                op if is_view(op) => Role::View,
                _ if chosen(instruction, &ty).is_some() => Role::Placement,
                op => op.elementwise().map_or(Role::Other, |op| {
                    let dtypes: SmallVec<[DType; 3]> = instruction.operands.iter().map(dtype).collect();
                    Role::Elementwise { cheap: op.is_cheap(&dtypes, out.dtype) }
                }),
            }
        };
        let mut fusion = Fusion {
            program,
            target,
            apart,
            bodies: Bodies::new(program),
            kinds: program.instructions.iter().map(kind).collect(),
            users: vec![Vec::new(); count],
            steps: Vec::new(),
            groups: Vec::new(),
            readers: vec![BTreeSet::new(); count],
            reads: program.reads(),
            outside: vec![false; count],
            lone: vec![false; count],
            owners: vec![None; count],
            detours: BTreeSet::new(),
            is_long: false,
        };
        fusion.is_long = fusion.is_long();
        for output in &program.outputs {
            if let Some(at) = fusion.bodies.maker(*output) {
                fusion.outside[at] = true;
            }
        }
        for at in 0..count {
            let sources: BTreeSet<usize> = fusion.bodies.sources(at).collect();
            sources.into_iter().for_each(|source| fusion.users[source].push(at));
        }
        for at in 0..count {
            if fusion.is_bitcast_of_kernels(at) {
                fusion.kinds[at] = Role::View;
            }
        }
        for at in 0..count {
            // What others would compute too often lies in memory, and so do what no kernel of these reads and what a
            // product's kernel stores for several. Where that is not little, steps behind it are counted with those
            // before, or kernels would compute long chains again, and keep what these read.
            let is_little = |at: usize| fusion.own_and_read_bytes(at).0 < target.joins.read_bytes / LEAST_READ;
            let is_computed = |&source: &usize| {
                let is_stored = fusion.outside[source]
                    || fusion.users[source].iter().any(|&at| fusion.kinds[at] == Role::Other)
                    || (fusion.users[source].len() > 1 && is_little(source) && fusion.follows_product(source))
                    || (fusion.is_drawn(source)
                        && fusion.kinds[source] != Role::View
                        && fusion.users[source].len() > 1);
                !is_stored && !fusion.is_repeated(source, fusion.elements(at))
            };
            let before =
                fusion.bodies.sources(at).filter(is_computed).map(|source| fusion.steps[source]).max().unwrap_or(0);
            fusion.steps.push(match fusion.kinds[at] {
                Role::Elementwise { cheap: true } => before + 1,
                Role::View | Role::Placement => before,
                Role::Elementwise { cheap: false } | Role::Source | Role::Reduce | Role::Other => 0,
            });
        }
        fusion
    }

    fn run(mut self) -> Result<Program> {
        for at in (0..self.program.instructions.len()).rev() {
            self.place(at);
        }
        if self.target.saving != Saving::Kernels {
            self.merge_siblings();
        }
        self.emit()
    }

    /// Whether an instruction is a change of bits that kernels do in registers. Where that makes narrow floats, it is
    /// one for kernels that compute with them: what stores them writes another NaN than it may have read.
    fn is_bitcast_of_kernels(&self, at: usize) -> bool {
        let Instruction { op: Op::Bitcast, operands, outs } = &self.program.instructions[at] else { return false };
        let types = operands.first().and_then(|&operand| self.bodies.ty(operand)).zip(outs.first());
        types.is_some_and(|(from, to)| {
            let keeps_nans = to.dtype.is_integer() || to.dtype.is_canonical();
            keeps_bits(from.dtype, to.dtype) && (keeps_nans || self.is_computed_with(at))
        })
    }

    /// Whether all that reads an instruction's result, by way of views or not, is elementwise.
    fn is_computed_with(&self, at: usize) -> bool {
        let computes = |&user: &usize| match self.kinds[user] {
            Role::Elementwise { .. } => true,
            Role::View => self.is_computed_with(user),
            Role::Source | Role::Reduce | Role::Placement | Role::Other => false,
        };
        !self.outside[at] && self.users[at].iter().all(computes)
    }

    /// Decides where an instruction is computed; all that read it have been placed.
    fn place(&mut self, at: usize) {
        if self.readers[at].is_empty() && !self.outside[at] {
            return;
        }
        match self.kinds[at] {
            Role::Other => self.alone(at),
            Role::View | Role::Source => {
                let mut alone = self.outside[at];
                for group in self.readers[at].clone() {
                    alone |= self.is_too_long_for(group, at) || !self.join(group, at, false);
                }
                if alone {
                    self.alone(at);
                }
            }
            Role::Elementwise { cheap } => self.place_computed(at, cheap),
            Role::Placement => self.place_computed(at, true),
            Role::Reduce => self.place_computed(at, false),
        }
    }

    fn alone(&mut self, at: usize) {
        self.lone[at] = true;
        for source in self.bodies.sources(at).collect::<Vec<_>>() {
            self.outside[source] = true;
        }
    }

    fn place_computed(&mut self, at: usize, cheap: bool) {
        // In long programs nothing small is computed twice, so that the work of this pass is in proportion to them.
        let cheap = cheap && self.steps[at] <= MAX_AGAIN && !(self.is_long && self.is_quick(at));
        self.merge_readers(at);
        let readers: Vec<usize> = self.readers[at].iter().copied().collect();
        let shared = self.outside[at] || readers.len() > 1;
        let mut stored = false;
        if self.keeps_products_apart(at, &readers) {
            return self.alone_in_group(at);
        }
        if shared && self.follows_product(at) {
            // The product's kernel stores it, which costs no dispatch and nothing that is read.
            return self.alone_in_group(at);
        }
        if self.outside[at] || (readers.len() > 1 && !cheap) {
            // One of the readers may store it on the way.
            let mut readers = readers.iter();
            let storing = readers.find(|&&group| {
                !self.is_too_long_for(group, at) && self.can_join(group, at, true) && !self.waits_for(group, at)
            });
            if let Some(&group) = storing {
                self.insert(group, at, true);
                stored = true;
            }
        }
        let is_read = if self.takes_many_steps(at) {
            self.outside[at] || stored || readers.iter().any(|&group| !self.can_join(group, at, false))
        } else {
            (self.outside[at] || stored) && self.is_smaller_than_operands(at)
        };
        let again = cheap && !is_read;
        for &group in &readers {
            let joins = (again || !shared)
                && self.readers[at].contains(&group)
                && !self.is_repeated(at, self.most_elements(group))
                && !self.is_too_long_for(group, at)
                && self.join(group, at, false);
            if joins && !shared {
                self.join_sources(group, at);
            }
        }
        if !stored && (self.outside[at] || !self.readers[at].is_empty()) {
            self.alone_in_group(at);
        }
    }

    /// Whether an instruction puts little together for several groups that products' kernels could do, which choose
    /// nothing by its place: a launch more for each of them otherwise.
    fn keeps_products_apart(&self, at: usize, readers: &[usize]) -> bool {
        let follows = |group: &&usize| {
            let outputs = self.groups[**group].iter().flat_map(|group| group.outputs.iter());
            let mut outputs =
                outputs.filter(|&output| self.elements(output) >= MAX_SMALL.saturating_mul(self.elements(at)));
            outputs.any(|output| self.follows_product(output))
        };
        self.kinds[at] == Role::Placement && readers.iter().filter(follows).nth(1).is_some()
    }

    fn alone_in_group(&mut self, at: usize) {
        let number = self.groups.len();
        self.groups.push(Some(Cluster::default()));
        self.insert(number, at, true);
    }

    /// Whether an instruction's result is not little, and takes fewer bytes than what it is computed from: where it is
    /// stored anyway, it is read, and not computed again.
    fn is_smaller_than_operands(&self, at: usize) -> bool {
        let (own, read) = self.own_and_read_bytes(at);
        own >= self.target.joins.read_bytes / LEAST_READ && own < read
    }

    /// Whether an instruction's result is large, and an element of it takes many cheap steps, each as often as parts of
    /// something else are seen.
    fn takes_many_steps(&self, at: usize) -> bool {
        let own = self.elements(at);
        if self.own_and_read_bytes(at).0 < self.target.joins.read_bytes {
            return false;
        }
        let (mut steps, mut seen) = (0, BTreeSet::new());
        let mut left = vec![(at, Vec::new())];
        while let Some((at, mut views)) = left.pop() {
            match self.kinds[at] {
                // Those of few elements are computed once for many.
                Role::Elementwise { cheap: true } if self.elements(at).saturating_mul(MAX_SMALL) >= own => steps += 1,
                Role::View | Role::Placement => views.push(at),
                Role::Elementwise { .. } | Role::Source | Role::Reduce | Role::Other => continue,
            }
            if steps > MAX_AGAIN {
                return true;
            }
            for source in self.bodies.sources(at) {
                let seen_so = (source, views.clone());
                if seen.insert(seen_so.clone()) {
                    left.push(seen_so);
                }
            }
        }
        false
    }

    /// What an instruction's results take, and what it is computed from.
    fn own_and_read_bytes(&self, at: usize) -> (u64, u64) {
        let instruction = &self.program.instructions[at];
        let operands: BTreeSet<Operand> = instruction.operands.iter().copied().collect();
        let computed =
            |operand: &&Operand| self.bodies.maker(**operand).is_none_or(|at| self.kinds[at] != Role::Source);
        let read = operands.iter().filter(computed).filter_map(|&o| self.bodies.ty(o)).map(Type::size_bytes).sum();
        (instruction.outs.iter().map(Type::size_bytes).sum(), read)
    }

    /// Whether an instruction ends many steps in something that is worth its place in memory: the bits of random
    /// numbers, or a comparison of such numbers, the mask of a dropout.
    fn is_drawn(&self, at: usize) -> bool {
        let (own, read) = self.own_and_read_bytes(at);
        let ends = match &self.program.instructions[at].op {
            Op::Bitcast => true,
            Op::Binary(op) => op.is_predicate() && 2 * own <= read,
            _ => false,
        };
        ends && self.steps[at] > MAX_AGAIN
    }

    /// Whether a kernel would be left with some of many steps, others in memory: what reduces rows has no registers for
    /// all of them, and none has room for two draws.
    fn is_too_long_for(&self, group: usize, at: usize) -> bool {
        let draws = |at: usize| self.program.instructions[at].op == Op::Bitcast && self.is_drawn(at);
        let is_full = |group: &Cluster| group.reduces.is_some() || (draws(at) && group.members.iter().any(draws));
        self.is_drawn(at) && self.groups[group].as_ref().is_some_and(is_full)
    }

    /// Whether an instruction is elementwise and has a product's results, which nothing else reads, among its operands,
    /// perhaps by way of others like it: then it can become the product's epilogue.
    fn follows_product(&self, at: usize) -> bool {
        let mut stack = vec![at];
        while let Some(at) = stack.pop() {
            let instruction = &self.program.instructions[at];
            if epilogue::is_product(&instruction.op) {
                return true;
            }
            let ([out], Role::Elementwise { .. }) = (instruction.outs.as_slice(), self.kinds[at]) else { continue };
            for operand in instruction.operands.iter().filter(|o| self.reads.get(o) == Some(&1)) {
                let alike = self.bodies.ty(*operand).is_some_and(|ty| ty.shape == out.shape);
                stack.extend(self.bodies.maker(*operand).filter(|_| alike));
            }
        }
        false
    }

    /// Whether a group needs the instruction's result by way of something outside of the group.
    fn waits_for(&self, group: usize, at: usize) -> bool {
        let externals = self.groups[group].iter().flat_map(|group| group.externals.iter());
        self.reaches(externals.filter(|&external| external != at), &Numbers::from_iter([at]))
    }

    /// The end of instructions from the first on, up to `end`, that depend on nothing behind them: no group that
    /// computes some of them reads later things.
    fn closed(&self, end: usize) -> usize {
        // Those that begin later come first, so that each finds the end that they leave.
        let detours = self.detours.range(..(end, 0)).rev();
        detours.fold(end, |end, &(first, last)| if last >= end { first } else { end })
    }

    /// Whether one of `start`, or what they depend on, is one of `targets`.
    fn reaches(&self, start: impl Iterator<Item = usize>, targets: &Numbers) -> bool {
        let first = targets.first().unwrap_or(usize::MAX);
        let end = self.closed(first);
        // What lies behind the targets and next to them comes first: what depends on them by way of most of the program
        // mostly does so by way of little, too.
        let nearness = |at: usize| (at >= first, Reverse(at));
        let mut open: BinaryHeap<(bool, Reverse<usize>)> = start.filter(|&at| at >= end).map(nearness).collect();
        let mut seen: HashSet<usize> = HashSet::new();
        while let Some((_, Reverse(at))) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            if targets.contains(at) {
                return true;
            }
            let is_open = |at: &usize| *at >= end && !seen.contains(at);
            match self.owners[at].and_then(|owner| self.groups[owner].as_ref()) {
                Some(owner) => open.extend(owner.externals.iter().filter(is_open).map(nearness)),
                None => open.extend(self.bodies.sources(at).filter(is_open).map(nearness)),
            }
        }
        false
    }

    /// Whether one kernel can compute an instruction with a group.
    fn can_join(&self, group: usize, at: usize, output: bool) -> bool {
        let Some(cluster) = &self.groups[group] else { return false };
        let reduces = (self.kinds[at] == Role::Reduce).then(|| self.reduced(at));
        let alone = Cluster { outputs: Numbers::from_iter([at]), reduces, ..Cluster::default() };
        if self.is_too_costly(cluster.costly + self.cost(at), cluster.reduces.is_some())
            || (output && !self.can_share(cluster, &alone))
        {
            return false;
        }
        let mut grown = cluster.clone();
        self.with_numbers(at).into_iter().for_each(|at| grown.members.insert(at));
        if output {
            grown.outputs.insert(at);
        }
        self.is_kernel(&grown)
    }

    /// Adds an instruction to a group if one kernel can compute all of it.
    fn join(&mut self, group: usize, at: usize, output: bool) -> bool {
        let joins = self.can_join(group, at, output);
        if joins {
            self.insert(group, at, output);
        }
        joins
    }

    /// Whether one kernel may have the results of both: all have as many elements, or as what is reduced has, or its
    /// result.
    fn can_share(&self, one: &Cluster, two: &Cluster) -> bool {
        let stored = |cluster: &Cluster| cluster.outputs.first().map(|output| self.elements(output));
        match (one.reduces, two.reduces) {
            (Some((of, _)), Some((other, _))) => of == other,
            (None, None) => stored(one) == stored(two),
            (Some((of, rows)), None) => stored(two).is_none_or(|elements| elements == of || elements == rows),
            (None, Some(_)) => self.can_share(two, one),
        }
    }

    /// Whether what computes an instruction would run too often as part of something of so many elements.
    fn is_repeated(&self, at: usize, elements: u64) -> bool {
        let own = self.elements(at);
        self.steps[at] > MAX_AGAIN && !(own..=own.saturating_mul(MAX_REPEATED)).contains(&elements)
    }

    fn elements(&self, at: usize) -> u64 {
        self.program.instructions[at].outs.first().map_or(0, Type::elements)
    }

    /// The most elements that a member of a group has.
    fn most_elements(&self, group: usize) -> u64 {
        let members = self.groups[group].iter().flat_map(|group| group.members.iter());
        members.map(|at| self.elements(at)).max().unwrap_or(0)
    }

    /// Adds what leads to a member of this group alone and is read by nothing else: one instruction, two, four and so
    /// on, so that the kernel is worked out anew less often than once for each. What is left finds its place as others
    /// do.
    fn join_sources(&mut self, group: usize, at: usize) {
        let mut from = BTreeSet::from([at]);
        let (mut count, elements) = (1, self.most_elements(group));
        while let Some(mut grown) = self.groups[group].clone() {
            let mut open: BTreeSet<usize> = from.iter().flat_map(|&at| self.bodies.sources(at)).collect();
            let mut added = BTreeSet::new();
            while let Some(at) = open.pop_last().filter(|_| added.len() < count) {
                let is_light = matches!(self.kinds[at], Role::Elementwise { cheap: true } | Role::View | Role::Source);
                let is_own = !self.outside[at] && self.users[at].iter().all(|&user| grown.members.contains(user));
                let fits = !self.is_repeated(at, elements) && !self.is_too_long_for(group, at);
                if is_light && is_own && fits && !grown.members.contains(at) {
                    added.insert(at);
                    self.with_numbers(at).into_iter().for_each(|at| grown.members.insert(at));
                    open.extend(self.bodies.sources(at));
                }
            }
            if added.is_empty() || !self.is_kernel(&grown) {
                return;
            }
            added.iter().for_each(|&at| self.insert(group, at, false));
            from.extend(added);
            count = (2 * count).min(MAX_AT_ONCE);
        }
    }

    /// An instruction, and the constants and counters that it reads, which need no place in memory.
    fn with_numbers(&self, at: usize) -> Vec<usize> {
        let is_number = |at: &usize| self.kinds[*at] == Role::Source;
        self.bodies.sources(at).filter(is_number).chain([at]).collect()
    }

    fn insert(&mut self, group: usize, at: usize, output: bool) {
        let cost = self.cost(at);
        let reduces = (self.kinds[at] == Role::Reduce).then(|| self.reduced(at));
        let joining = self.with_numbers(at);
        if let Some(cluster) = self.groups[group].as_mut() {
            let before = cluster.detour();
            self.bodies.insert(cluster, &joining);
            cluster.costly += cost;
            cluster.reduces = reduces.or(cluster.reduces);
            if output {
                cluster.outputs.insert(at);
            }
            let after = cluster.detour();
            self.note_detour(before, after);
        }
        if output {
            self.owners[at] = Some(group);
        }
        for at in joining {
            self.readers[at].remove(&group);
            self.note_reads(group, at);
        }
    }

    fn note_detour(&mut self, before: Option<(usize, usize)>, after: Option<(usize, usize)>) {
        if let Some(detour) = before {
            self.detours.remove(&detour);
        }
        self.detours.extend(after);
    }

    /// Notes what a group has to read for a member.
    fn note_reads(&mut self, group: usize, at: usize) {
        for source in self.bodies.sources(at) {
            if self.groups[group].as_ref().is_some_and(|group| !group.members.contains(source)) {
                self.readers[source].insert(group);
            }
        }
    }

    /// Whether nothing that is known without a plan keeps two groups from being one.
    fn may_merge(&self, a: usize, b: usize) -> bool {
        let (Some(one), Some(two)) = (&self.groups[a], &self.groups[b]) else { return false };
        // Each result is stored by one group, so that those of both add up.
        !self.is_too_costly(one.costly + two.costly, one.reduces.or(two.reduces).is_some())
            && one.outputs.len() + two.outputs.len() <= MAX_STORES
            && self.can_share(one, two)
            && !one.outputs.iter().chain(two.outputs.iter()).any(|output| self.is_for_vectors(output))
    }

    /// Whether an instruction's result is a matrix that one product by few vectors alone reads, whose kernel may compute
    /// its elements: what else is stored with it would have to be computed again.
    fn is_for_vectors(&self, at: usize) -> bool {
        let [user] = self.users[at].as_slice() else { return false };
        let product = &self.program.instructions[*user];
        // What it reads may be a view of the result.
        let source = |operand: Operand| {
            let mut source = self.bodies.maker(operand)?;
            while let (true, [before]) = (source != at, self.program.instructions[source].operands.as_slice()) {
                if !is_view(&self.program.instructions[source].op) {
                    break;
                }
                source = self.bodies.maker(*before)?;
            }
            Some(source)
        };
        let ([a, b], [out]) = (product.operands.as_slice(), product.outs.as_slice()) else { return false };
        let (Some(left), Some(right)) = (self.bodies.ty(*a), self.bodies.ty(*b)) else { return false };
        let is_matrix = |&operand: &Operand| source(operand) == Some(at) && self.reads.get(&operand) == Some(&1);
        let Some(place) = [*a, *b].iter().position(is_matrix) else { return false };
        let vectors = epilogue::vectors(&product.op, [left, right], out, place);
        vectors.is_some_and(|count| count <= self.target.derived_vectors)
    }

    /// Makes one group of two that may merge if one kernel can compute all of it, and nothing must run between them.
    fn merge(&mut self, a: usize, b: usize) -> bool {
        let (Some(one), Some(two)) = (&self.groups[a], &self.groups[b]) else { return false };
        let (costly, reduces) = (one.costly + two.costly, one.reduces.or(two.reduces));
        let members = one.members.union(&two.members);
        let externals = one.externals.union(&two.externals).without(&members);
        let outputs = one.outputs.union(&two.outputs);
        let merged = Cluster { members, outputs, externals, costly, reduces };
        let is_read_elsewhere = |output: usize| {
            let is_other = |at: &usize| self.lone[*at] || !merged.members.contains(*at);
            self.users[output].iter().any(is_other)
                || self.readers[output].iter().any(|&group| group != a && group != b)
        };
        let between = |from: &Cluster, to: &Cluster| {
            to.outputs.iter().any(is_read_elsewhere)
                && self.reaches(from.externals.without(&to.outputs).iter(), &to.outputs)
        };
        // A plan is of two groups, what lies between them may be most of the program.
        if !self.is_kernel(&merged) || between(one, two) || between(two, one) {
            return false;
        }
        for output in merged.outputs.iter() {
            self.owners[output] = Some(a);
        }
        for source in two.externals.iter() {
            self.readers[source].remove(&b);
        }
        for member in one.externals.iter().filter(|&at| merged.members.contains(at)) {
            self.readers[member].remove(&a);
        }
        for external in merged.externals.iter() {
            self.readers[external].insert(a);
        }
        let (one, two, whole) = (one.detour(), two.detour(), merged.detour());
        self.note_detour(two, None);
        self.note_detour(one, whole);
        self.groups[a] = Some(merged);
        self.groups[b] = None;
        true
    }

    /// Whether an instruction takes compilers long and is small.
    fn is_costly(&self, at: usize) -> bool {
        self.kinds[at] == Role::Elementwise { cheap: false } && self.is_quick(at)
    }

    /// What an instruction counts among the costly steps of its kernel.
    fn cost(&self, at: usize) -> u64 {
        match self.program.instructions[at].op.elementwise() {
            Some(op) if self.is_costly(at) => cost(op),
            _ => 0,
        }
    }

    /// Whether a group of a long program has more costly steps than its kernel may have, which is known without a plan.
    /// What is reduced may be large, so that only its plan tells.
    fn is_too_costly(&self, costly: u64, reduces: bool) -> bool {
        self.is_long && !reduces && costly > self.target.quick.instructions
    }

    fn is_kernel(&self, group: &Cluster) -> bool {
        self.bodies.answer(group, |body| {
            (self.target.saving != Saving::Kernels || keeps_little(body))
                && Plan::of(body, self.target.live_words)
                    .is_ok_and(|plan| self.takes(&plan) && (!self.is_long || compiles_soon(&plan, &self.target.quick)))
        })
    }

    /// Elements of what an instruction reduces, and of its result.
    fn reduced(&self, at: usize) -> (u64, u64) {
        let of = self.program.instructions[at].operands.first().and_then(|&operand| self.bodies.ty(operand));
        (of.map_or(0, Type::elements), self.elements(at))
    }

    /// Whether the program has so many small ops that compiling them would take long.
    fn is_long(&self) -> bool {
        let counts = |&at: &usize| self.is_costly(at) || (self.kinds[at] == Role::Placement && self.is_quick(at));
        (0..self.kinds.len()).filter(counts).count() >= self.target.quick.long_program
    }

    /// Whether an instruction's results are small.
    fn is_quick(&self, at: usize) -> bool {
        self.program.instructions[at].outs.iter().all(|out| out.elements() <= self.target.quick.elements)
    }

    fn takes(&self, plan: &Plan) -> bool {
        if self.target.saving == Saving::Reductions {
            return plan.reductions().next().is_none();
        }
        match self.apart && plan.reductions().next().is_some() {
            true => {
                let is_alone =
                    Reductions::of(plan, self.target.repeats).is_some_and(|reductions| reductions.is_alone());
                is_alone || plan.by_parts().is_some() && self.target.is_too_large(plan)
            }
            false => self.target.takes(plan),
        }
    }

    /// Whether a kernel of its own is worth it: two ops that compute, one with numbers of its own, or one that takes
    /// several kernels otherwise.
    fn is_fused(&self, group: &Cluster) -> bool {
        let among = |kinds: &[Role]| group.members.iter().filter(|&at| kinds.contains(&self.kinds[at])).count();
        let placement = group.members.iter().find(|&at| self.kinds[at] == Role::Placement);
        let others = group.members.len() - among(&[Role::View]) - 1;
        match placement {
            Some(at) if others == among(&[Role::Source]) => self.is_one_copy(at) && self.is_kernel(group),
            _ => others > 0,
        }
    }

    /// Whether one kernel puts the parts of something larger in place sooner than a copy of each, and gives the same
    /// bits.
    fn is_one_copy(&self, at: usize) -> bool {
        let instruction = &self.program.instructions[at];
        let fills = instruction.index_map(|operand| self.bodies.ty(operand)).is_some_and(|map| map.around.is_some());
        let canonical = |operand: Operand| self.bodies.ty(operand).is_some_and(|ty| ty.dtype.is_canonical());
        instruction.operands.iter().all(|&operand| canonical(operand) || self.is_computed(operand))
            && (fills || self.target.chooses_parts)
    }

    /// Whether numbers of a narrow type are what arithmetic gave: the one NaN that it gives is no other for being
    /// rounded again.
    fn is_computed(&self, operand: Operand) -> bool {
        let Some(instruction) = self.bodies.maker(operand).map(|at| &self.program.instructions[at]) else {
            return false;
        };
        match &instruction.op {
            Op::Binary(Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide) | Op::Dot { .. } => true,
            Op::AsType => instruction.operands.iter().all(|&from| self.bodies.ty(from) != instruction.outs.first()),
            Op::Reshape | Op::Squeeze | Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast { .. } => {
                instruction.operands.iter().all(|&source| self.is_computed(source))
            }
            _ => false,
        }
    }

    fn emit(&self) -> Result<Program> {
        let mut new = Rewriter::new(self.program);
        // New operands of the old results.
        let mut moved: HashMap<Operand, Operand> = HashMap::new();
        let mut stack: Vec<usize> = self.program.outputs.iter().filter_map(|&o| self.bodies.maker(o)).collect();
        let mut open: HashSet<usize> = HashSet::new();
        while let Some(&at) = stack.last() {
            let result = |at: usize| self.bodies.result(at);
            if moved.contains_key(&result(at)) {
                stack.pop();
                continue;
            }
            let group = self.owners[at].and_then(|g| self.groups[g].as_ref()).filter(|g| self.is_fused(g));
            let needed: Numbers = match group {
                Some(group) => group.externals.clone(),
                None => self.bodies.sources(at).collect(),
            };
            let missing: Vec<usize> = needed.iter().filter(|&at| !moved.contains_key(&result(at))).collect();
            if !missing.is_empty() {
                if !open.insert(at) {
                    return Err(broken("kernels that wait for each other"));
                }
                match self.target.saving {
                    Saving::Nothing => stack.extend(missing),
                    Saving::Order | Saving::Kernels | Saving::Reductions => stack.extend(missing.into_iter().rev()),
                }
                continue;
            }
            let find = |operand: &Operand| match operand {
                Operand::Input(_) => Ok(*operand),
                Operand::Result(_) => moved.get(operand).copied().ok_or_else(|| broken("an operand is missing")),
            };
            let (instruction, results): (Instruction, Vec<Operand>) = match group {
                Some(group) => {
                    let (body, operands) = self.bodies.body(group).ok_or_else(|| broken("a group without types"))?;
                    let outs = group.outputs.iter().filter_map(|at| self.bodies.ty(result(at)).cloned()).collect();
                    let operands = operands.iter().map(find).collect::<Result<_>>()?;
                    let results = group.outputs.iter().map(result).collect();
                    (Instruction { op: Op::Fused(Box::new(body)), operands, outs }, results)
                }
                None => {
                    let old = &self.program.instructions[at];
                    let operands = old.operands.iter().map(find).collect::<Result<_>>()?;
                    (Instruction { operands, ..old.clone() }, self.bodies.results(at).collect())
                }
            };
            if let Operand::Result(base) = new.push(instruction) {
                moved.extend(results.into_iter().zip((base..).map(Operand::Result)));
            }
        }
        for old in (0..self.program.instructions.len()).flat_map(|at| self.bodies.results(at)) {
            new.moved(moved.get(&old).copied().unwrap_or(Operand::Result(u32::MAX)));
        }
        new.finish(self.program)
    }
}

fn broken(reason: &str) -> Error {
    Error::InvalidProgram { op: "fuse".to_string(), reason: reason.to_string() }
}
