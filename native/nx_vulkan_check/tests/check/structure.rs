//! Structured control flow of foreign modules: each rule has a module that breaks it, valid flow passes, and random
//! flow is judged as spirv-val judges it.
//!
//! `NX_VULKAN_SPIRV_FLOWS` sets how many random functions are tried, `NX_VULKAN_SPIRV_SEED` where they begin.

use std::path::Path;

use nx_vulkan_check::{Reflection, spirv_val};

use crate::flow::{Block, End, Merge, block, module};
use crate::random::Random;

/// Random statements, as blocks.
struct Writer {
    random: Random,
    blocks: Vec<Block>,
    labels: u32,
    budget: usize,
}

/// Where the statements around lead out.
#[derive(Clone, Copy, Default)]
struct Exits {
    leave: Option<u32>,
    again: Option<u32>,
    /// A continue construct has no way out but its end.
    closed: bool,
}

impl Writer {
    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
    }

    fn end(&mut self, label: u32, merge: Merge, end: End) {
        self.blocks.push(block(label, merge, end));
    }

    /// Writes statements from `at` on, and where they go on after; nowhere where they end.
    fn statements(&mut self, mut at: u32, exits: Exits) -> Option<u32> {
        for _ in 0..1 + self.random.below(2) {
            at = self.statement(at, exits)?;
        }
        Some(at)
    }

    fn arm(&mut self, at: u32, exits: Exits, then: u32) {
        if let Some(last) = self.statements(at, exits) {
            self.end(last, Merge::None, End::To(then));
        }
    }

    fn statement(&mut self, at: u32, exits: Exits) -> Option<u32> {
        if self.budget == 0 {
            return Some(at);
        }
        self.budget -= 1;
        match self.random.below(8) {
            0 | 1 => {
                let (merge, yes) = (self.label(), self.label());
                let no = if self.random.below(2) == 0 { merge } else { self.label() };
                self.end(at, Merge::Selection(merge), End::If(yes, no));
                self.arm(yes, exits, merge);
                if no != merge {
                    self.arm(no, exits, merge);
                }
                Some(merge)
            }
            2 | 3 => {
                let (header, merge, body) = (self.label(), self.label(), self.label());
                let continues = self.label();
                self.end(at, Merge::None, End::To(header));
                let inner = Exits { leave: Some(merge), again: Some(continues), closed: false };
                let end = if self.random.below(2) == 0 { End::If(body, merge) } else { End::To(body) };
                self.end(header, Merge::Loop(merge, continues), end);
                self.arm(body, if exits.closed { Exits { closed: true, ..inner } } else { inner }, continues);
                let closed = Exits { leave: None, again: None, closed: true };
                let latch = self.statements(continues, closed).unwrap();
                let end = if self.random.below(2) == 0 { End::If(header, merge) } else { End::To(header) };
                self.end(latch, Merge::None, end);
                Some(merge)
            }
            4 => {
                let merge = self.label();
                let cases: Vec<u32> = (0..1 + self.random.below(3)).map(|_| self.label()).collect();
                let mut targets = cases.clone();
                let default = self.random.below(cases.len() + 1);
                let default = cases.get(default).copied().unwrap_or(merge);
                targets.insert(0, default);
                self.end(at, Merge::Selection(merge), End::Switch(targets));
                let inner = Exits { leave: Some(merge), ..exits };
                for (index, &case) in cases.iter().enumerate() {
                    let falls = self.random.below(2) == 0;
                    let then = cases.get(index + 1).copied().filter(|_| falls).unwrap_or(merge);
                    self.arm(case, inner, then);
                }
                Some(merge)
            }
            5 => {
                let choice = [exits.leave, exits.again][self.random.below(2)];
                let Some(to) = choice else { return Some(at) };
                let next = self.label();
                let end = if self.random.below(2) == 0 { End::If(to, next) } else { End::If(next, to) };
                self.end(at, Merge::None, end);
                Some(next)
            }
            6 => {
                let choice = [exits.leave, exits.again][self.random.below(2)];
                let Some(to) = choice else { return Some(at) };
                self.end(at, Merge::None, End::To(to));
                None
            }
            _ if exits.closed => Some(at),
            _ => {
                let end = if self.random.below(2) == 0 { End::Return } else { End::Unreachable };
                self.end(at, Merge::None, end);
                None
            }
        }
    }
}

/// A function of random statements, in an order in which dominators come first.
fn function(random: Random) -> (Vec<Block>, Random) {
    let mut writer = Writer { random, blocks: Vec::new(), labels: 1, budget: 7 };
    if let Some(last) = writer.statements(0, Exits::default()) {
        writer.end(last, Merge::None, End::Return);
    }
    let written: Vec<u32> = writer.blocks.iter().map(|block| block.label).collect();
    for label in 0..writer.labels {
        if !written.contains(&label) {
            writer.end(label, Merge::None, End::Unreachable);
        }
    }
    (writer.blocks, writer.random)
}

/// One target, merge or end replaced.
fn change(blocks: &mut [Block], random: &mut Random) {
    let labels = blocks.len();
    let label = blocks[random.below(labels)].label;
    let index = random.below(labels);
    let other = blocks[random.below(labels)].clone();
    let changed = &mut blocks[index];
    match random.below(10) {
        0 => changed.merge = Merge::None,
        1 => changed.merge = Merge::Selection(label),
        2 => changed.merge = other.merge,
        3 => changed.end = other.end,
        4 => changed.end = End::Return,
        5 => match &mut changed.merge {
            Merge::Selection(merge) | Merge::Loop(merge, _) => *merge = label,
            Merge::None => {}
        },
        6 => {
            if let Merge::Loop(_, continues) = &mut changed.merge {
                *continues = label;
            }
        }
        7 => blocks.swap(index, random.below(labels)),
        _ => match &mut changed.end {
            End::To(to) => *to = label,
            End::If(yes, no) => *(if random.below(2) == 0 { yes } else { no }) = label,
            End::Switch(targets) => {
                let at = random.below(targets.len());
                targets[at] = label;
            }
            End::Return | End::Unreachable => changed.end = End::If(label, other.label),
        },
    }
}

/// The labels that branches, and with `declared` merge instructions, lead to; each after those that every way there
/// leads through.
fn reachable(blocks: &[Block], declared: bool) -> Vec<u32> {
    let mut found = vec![blocks[0].label];
    let mut at = 0;
    while let Some(&label) = found.get(at) {
        let block = blocks.iter().find(|block| block.label == label).unwrap();
        let mut next = match block.merge {
            Merge::Selection(merge) if declared => vec![merge],
            Merge::Loop(merge, continues) if declared => vec![merge, continues],
            _ => vec![],
        };
        match &block.end {
            End::To(to) => next.push(*to),
            End::If(yes, no) => next.extend([yes, no]),
            End::Switch(targets) => next.extend(targets),
            End::Return | End::Unreachable => {}
        }
        for label in next {
            if !found.contains(&label) {
                found.push(label);
            }
        }
        at += 1;
    }
    found
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn refusal(blocks: &[Block]) -> Option<String> {
    Reflection::of(&module(blocks), "").err().map(|error| error.to_string())
}

#[test]
fn random_flow_is_judged_as_the_external_validator_does() {
    let path = std::env::temp_dir().join(format!("nx_vulkan-flow-{}.spv", std::process::id()));
    std::fs::write(&path, module(&[block(0, Merge::None, End::Return)])).unwrap();
    if !matches!(spirv_val(&path), Ok(true)) {
        return crate::tools::skipped_without_spirv_val();
    }
    let (mut accepted, mut wrong) = (0, Vec::new());
    let seed = setting("NX_VULKAN_SPIRV_SEED", 0);
    for number in seed..seed + setting("NX_VULKAN_SPIRV_FLOWS", 1500) {
        let (mut blocks, mut random) = function(Random(number.wrapping_mul(0x2545_f491_4f6c_dd1d)));
        for _ in 0..random.below(3) {
            change(&mut blocks, &mut random);
        }
        // The validator knows rules for blocks that nothing leads to as well, which no driver looks at.
        let is_whole = random.below(2) == 0;
        if !is_whole {
            let found = reachable(&blocks, true);
            blocks.retain(|block| found.contains(&block.label));
        }
        std::fs::write(&path, module(&blocks)).unwrap();
        let external = spirv_val(&path).err().map(|error| error.to_string());
        let own = refusal(&blocks);
        accepted += usize::from(own.is_none());
        // That nothing declares the first block to be its merge block is no rule of it where the header can't be
        // reached.
        let names_first = own.as_ref().is_some_and(|said| said.contains("the first block"));
        // Nor are the cases of a switch that no branch leads to compared.
        let is_odd_switch = reachable(&blocks, false).len() < blocks.len()
            && external.as_ref().is_some_and(|said| said.contains("Case construct"));
        let is_left = own.is_none() && (is_whole || is_odd_switch);
        if own.is_some() != external.is_some() && !is_left && !names_first {
            let listed: Vec<String> = blocks.iter().map(|block| format!("  {block:?}")).collect();
            wrong.push(format!("{number}: {own:?} but {external:?}\n{}", listed.join("\n")));
        }
    }
    std::fs::remove_file(&path).unwrap();
    println!("{accepted} accepted");
    assert!(accepted > 0);
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

use End::{If, Return, Switch, To, Unreachable};
use Merge::{Loop, None as Plain, Selection};

fn flow(blocks: &[(u32, Merge, End)]) -> Vec<Block> {
    blocks.iter().map(|(label, merge, end)| block(*label, *merge, end.clone())).collect()
}

/// Blocks with some replaced and some added.
fn changed(mut blocks: Vec<Block>, changes: &[(u32, Merge, End)]) -> Vec<Block> {
    for new in flow(changes) {
        match blocks.iter_mut().find(|block| block.label == new.label) {
            Some(old) => *old = new,
            None => blocks.push(new),
        }
    }
    let order = reachable(&blocks, false);
    blocks.sort_by_key(|block| order.iter().position(|label| *label == block.label).unwrap_or(usize::MAX));
    blocks
}

/// 0 leads to the loop of header 1, body 3, continue target 4 and merge block 2.
fn around_loop(changes: &[(u32, Merge, End)]) -> Vec<Block> {
    let blocks =
        [(0, Plain, To(1)), (1, Loop(2, 4), If(3, 2)), (3, Plain, To(4)), (4, Plain, To(1)), (2, Plain, Return)];
    changed(flow(&blocks), changes)
}

/// 0 is a switch with the default 1, cases 2, 3 and 4, and merge block 5.
fn around_switch(changes: &[(u32, Merge, End)]) -> Vec<Block> {
    let blocks = [
        (0, Selection(5), Switch(vec![1, 2, 3, 4])),
        (1, Plain, To(5)),
        (2, Plain, To(5)),
        (3, Plain, To(5)),
        (4, Plain, To(5)),
        (5, Plain, Return),
    ];
    changed(flow(&blocks), changes)
}

#[test]
fn each_rule_of_structured_flow_refuses_what_breaks_it() {
    let cases = [
        (
            "merge block 9 of header 9 must be reached through 9",
            flow(&[(0, Plain, To(1)), (1, Selection(1), If(2, 3)), (2, Plain, Return), (3, Plain, Return)]),
        ),
        (
            "merge block 12 of header 9 must be reached through 9 alone",
            flow(&[
                (0, Selection(3), If(1, 2)),
                (1, Selection(4), If(3, 4)),
                (4, Plain, To(3)),
                (2, Plain, To(4)),
                (3, Plain, Return),
            ]),
        ),
        ("merge block 10 has another part, too", around_loop(&[(0, Selection(2), If(1, 2))])),
        (
            "continue target 12 of header 9 must be reached through 9",
            around_loop(&[(0, Selection(5), If(1, 4)), (5, Plain, Return)]),
        ),
        ("leads back to 9, which is no loop header", around_loop(&[(1, Selection(2), If(3, 2))])),
        (
            "is a second way back to loop header 9",
            around_loop(&[(4, Selection(6), If(5, 6)), (5, Plain, To(1)), (6, Plain, To(1))]),
        ),
        ("no block leads back to loop header 9", around_loop(&[(4, Plain, To(2))])),
        ("leads back to loop header 9 from outside of its continue target 12", around_loop(&[(3, Plain, To(1))])),
        (
            "is its own continue target",
            flow(&[(0, Plain, To(1)), (1, Loop(2, 1), To(3)), (3, Plain, If(1, 2)), (2, Plain, Return)]),
        ),
        (
            "without an OpSelectionMerge",
            flow(&[(0, Plain, If(1, 2)), (1, Plain, If(2, 3)), (3, Plain, To(2)), (2, Plain, Return)]),
        ),
        (
            "leaves the loop headed by 11 for 10",
            around_loop(&[(3, Loop(5, 6), If(7, 5)), (7, Plain, If(6, 2)), (6, Plain, To(3)), (5, Plain, To(4))]),
        ),
        (
            "leaves the selection headed by 9 for 11",
            flow(&[
                (0, Selection(3), If(1, 3)),
                (1, Selection(4), If(5, 4)),
                (5, Plain, To(3)),
                (4, Plain, To(3)),
                (3, Plain, Return),
            ]),
        ),
        (
            "leads to 9 in the middle of the construct that begins with 8",
            flow(&[(0, Selection(2), If(1, 2)), (2, Plain, To(1)), (1, Plain, Return)]),
        ),
        ("leaves the continue construct of 12; only 13", around_loop(&[(4, Plain, If(5, 2)), (5, Plain, To(1))])),
        (
            "ends the function inside of a loop's continue construct",
            around_loop(&[(4, Selection(6), If(5, 6)), (5, Plain, Return), (6, Plain, To(1))]),
        ),
        ("may lead else to the loop's merge block only", around_loop(&[(4, Plain, If(1, 5)), (5, Plain, To(2))])),
        (
            "case 10 falls through to two others",
            around_switch(&[(2, Selection(6), If(7, 6)), (7, Plain, To(6)), (6, Plain, If(3, 4))]),
        ),
        ("more than one case falls through to 12", around_switch(&[(2, Plain, To(4)), (3, Plain, To(4))])),
        ("case 10 falls through to 12, which must stand right behind it", around_switch(&[(2, Plain, To(4))])),
        (
            "leaves the case headed by 11 for 14",
            around_switch(&[(2, Plain, To(6)), (3, Plain, To(6)), (6, Plain, To(5))]),
        ),
        ("can be reached past this switch", around_loop(&[(3, Selection(5), Switch(vec![5, 2])), (5, Plain, To(4))])),
        ("without an OpSelectionMerge", around_switch(&[(0, Plain, Switch(vec![1, 2, 3, 4]))])),
        ("without an OpSelectionMerge", flow(&[(0, Plain, If(1, 2)), (1, Plain, Return), (2, Plain, Return)])),
        ("without an OpSelectionMerge", around_loop(&[(1, Loop(2, 4), If(3, 5)), (5, Plain, To(4))])),
        (
            "stands before a block that every way here leads through",
            flow(&[(0, Plain, To(1)), (2, Plain, Return), (1, Plain, To(2))]),
        ),
        ("nested in more than 1023", nest(1024)),
    ];
    let said = cases.map(|(wanted, blocks)| (wanted, refusal(&blocks)));
    let wrong: Vec<_> =
        said.iter().filter(|(wanted, said)| !said.as_ref().is_some_and(|s| s.contains(wanted))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Selections in one another.
fn nest(depth: u32) -> Vec<Block> {
    let opened = (0..depth).map(|at| block(at, Selection(2 * depth - at), If(at + 1, 2 * depth - at)));
    let closed = (depth..2 * depth).map(|at| block(at, Plain, To(at + 1)));
    opened.chain(closed).chain([block(2 * depth, Plain, Return)]).collect()
}

#[test]
fn structured_flow_is_accepted() {
    let cases = [
        around_loop(&[]),
        around_loop(&[(3, Plain, If(2, 5)), (5, Plain, If(4, 6)), (6, Plain, To(2))]),
        // A loop without a way out, and one that is its own continue construct.
        around_loop(&[(1, Loop(2, 4), To(3)), (2, Plain, Unreachable)]),
        flow(&[(0, Plain, To(1)), (1, Loop(2, 1), If(1, 2)), (2, Plain, Return)]),
        // The first turn ends in any case, so that the continue target is declared only.
        around_loop(&[(3, Plain, Return)]),
        around_loop(&[(4, Plain, If(1, 2))]),
        // A loop in the continue construct, beginning with it.
        around_loop(&[(4, Loop(5, 6), If(6, 5)), (6, Plain, To(4)), (5, Plain, To(1))]),
        around_switch(&[]),
        around_switch(&[(2, Plain, To(3)), (3, Plain, If(4, 5))]),
        // Through the default, which has no place in the list of its own.
        around_switch(&[(2, Plain, To(1)), (1, Plain, To(3))]),
        around_switch(&[(0, Selection(5), Switch(vec![5, 2, 2, 3, 4])), (2, Plain, To(3)), (1, Plain, To(5))]),
        around_switch(&[(0, Selection(5), Switch(vec![1, 2, 2, 1, 1, 3])), (2, Plain, To(1)), (1, Plain, To(3))]),
        // Breaks of a loop and of a switch from a selection in them.
        around_loop(&[(3, Selection(5), If(6, 5)), (6, Plain, If(4, 2)), (5, Plain, To(4))]),
        around_switch(&[(2, Selection(6), If(7, 6)), (7, Plain, To(5)), (6, Plain, To(3))]),
        flow(&[(0, Plain, If(1, 1)), (1, Plain, Return)]),
        // What nothing leads to may be anything.
        flow(&[(0, Plain, Return), (1, Plain, To(2)), (2, Plain, If(1, 2))]),
        nest(1000),
    ];
    for blocks in cases {
        assert_eq!(refusal(&blocks), None, "{blocks:?}");
    }
}

/// Runs a tool of glslang or SPIRV-Tools; false where it is not installed.
fn tool(name: &str, arguments: &[&str]) -> bool {
    match std::process::Command::new(name).args(arguments).output() {
        Ok(output) => {
            assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
            true
        }
        Err(_) => false,
    }
}

#[test]
fn compiled_flow_is_accepted_whatever_the_optimizer_does() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spirv/structured.comp");
    let stored = std::fs::read(source.with_extension("comp.spv")).unwrap();
    Reflection::of(&stored, "structured").unwrap();
    let folder = std::env::temp_dir().join(format!("nx_vulkan-structured-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (plain, optimized) = (folder.join("plain.spv"), folder.join("optimized.spv"));
    let [source, plain, optimized] = [&source, &plain, &optimized].map(|path| path.to_str().unwrap());
    for debug in ["-g0", "-gVS"] {
        if !tool("glslangValidator", &["-V", "--target-env", "vulkan1.2", debug, source, "-o", plain]) {
            eprintln!("glslangValidator is not installed: skipped");
            break;
        }
        Reflection::of(&std::fs::read(plain).unwrap(), plain).unwrap();
        let all = [
            "-O",
            "-Os",
            "--merge-return --inline-entry-points-exhaustive --eliminate-dead-branches --merge-blocks",
            "--merge-return --inline-entry-points-exhaustive -O",
            "-O --loop-peeling --if-conversion",
            "--merge-return --inline-entry-points-exhaustive -O --loop-unroll-partial 3 --loop-unswitch",
        ];
        for passes in all {
            let arguments: Vec<&str> = passes.split(' ').chain([plain, "-o", optimized]).collect();
            if !tool("spirv-opt", &arguments) {
                eprintln!("spirv-opt is not installed: skipped");
                break;
            }
            let found = Reflection::of(&std::fs::read(optimized).unwrap(), passes);
            let external = spirv_val(Path::new(optimized));
            assert!(found.is_ok() || external.is_err(), "{debug} {passes}: {found:?}, {external:?}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn long_functions_take_no_time() {
    let count = 100_000;
    let selections = (0..count).flat_map(|at| {
        [block(2 * at, Selection(2 * at + 2), If(2 * at + 1, 2 * at + 2)), block(2 * at + 1, Plain, To(2 * at + 2))]
    });
    let blocks: Vec<Block> = selections.chain([block(2 * count, Plain, Return)]).collect();
    let begin = std::time::Instant::now();
    assert_eq!(refusal(&blocks), None);
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}
