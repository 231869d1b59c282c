//! Modules of one function, made from a list of its blocks.

/// What a block's merge instruction says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Merge {
    None,
    Selection(u32),
    Loop(u32, u32),
}

/// How a block ends. The targets of a switch begin with its default; the literals of the others count from 0.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    To(u32),
    If(u32, u32),
    Switch(Vec<u32>),
    Return,
    Unreachable,
}

/// Labels are small numbers of the caller's choice.
#[derive(Debug, Clone)]
pub struct Block {
    pub label: u32,
    pub merge: Merge,
    pub end: End,
}

pub fn block(label: u32, merge: Merge, end: End) -> Block {
    Block { label, merge, end }
}

const VOID: u32 = 1;
const FUNCTION: u32 = 2;
const BOOLEAN: u32 = 3;
const CONDITION: u32 = 4;
const INTEGER: u32 = 5;
const SELECTOR: u32 = 6;
const MAIN: u32 = 7;
const LABELS: u32 = 8;

pub fn instruction(op: u32, operands: &[u32]) -> Vec<u32> {
    let mut words = vec![(operands.len() as u32 + 1) << 16 | op];
    words.extend(operands);
    words
}

/// The bytes of a module, in which conditions are unknown to no one: only the control flow is looked at.
pub fn module(blocks: &[Block]) -> Vec<u8> {
    let bound = LABELS + blocks.iter().map(|block| block.label).max().unwrap_or(0) + 1;
    let mut list = vec![
        vec![0x0723_0203, 0x0001_0500, 0, bound, 0],
        instruction(17, &[1]),
        instruction(14, &[0, 1]),
        instruction(15, &[5, MAIN, u32::from_le_bytes(*b"main"), 0]),
        instruction(16, &[MAIN, 17, 1, 1, 1]),
        instruction(19, &[VOID]),
        instruction(33, &[FUNCTION, VOID]),
        instruction(20, &[BOOLEAN]),
        instruction(41, &[BOOLEAN, CONDITION]),
        instruction(21, &[INTEGER, 32, 0]),
        instruction(43, &[INTEGER, SELECTOR, 1]),
        instruction(54, &[VOID, MAIN, 0, FUNCTION]),
    ];
    for block in blocks {
        list.push(instruction(248, &[LABELS + block.label]));
        match block.merge {
            Merge::None => {}
            Merge::Selection(merge) => list.push(instruction(247, &[LABELS + merge, 0])),
            Merge::Loop(merge, continues) => list.push(instruction(246, &[LABELS + merge, LABELS + continues, 0])),
        }
        list.push(match &block.end {
            End::To(to) => instruction(249, &[LABELS + to]),
            End::If(yes, no) => instruction(250, &[CONDITION, LABELS + yes, LABELS + no]),
            End::Switch(targets) => {
                let mut operands = vec![SELECTOR, LABELS + targets[0]];
                for (literal, target) in targets[1..].iter().enumerate() {
                    operands.extend([literal as u32, LABELS + target]);
                }
                instruction(251, &operands)
            }
            End::Return => instruction(253, &[]),
            End::Unreachable => instruction(255, &[]),
        });
    }
    list.push(instruction(56, &[]));
    list.into_iter().flatten().flat_map(u32::to_le_bytes).collect()
}
