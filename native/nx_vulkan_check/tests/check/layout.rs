//! Layouts of blocks in foreign modules: each rule has a module that breaks it, and what compilers lay out passes.

use std::path::Path;

use nx_vulkan_check::Reflection;

use crate::flow::instruction;

const BLOCK: u32 = 2;
const ROW_MAJOR: u32 = 4;
const COLUMN_MAJOR: u32 = 5;
const ARRAY_STRIDE: u32 = 6;
const MATRIX_STRIDE: u32 = 7;
const OFFSET: u32 = 35;

const STORAGE_BUFFER: u32 = 12;
const PUSH_CONSTANT: u32 = 9;
const WORKGROUP: u32 = 4;

// Ids of types that every module has.
const FLOAT: u32 = 10;
const HALF: u32 = 11;
const PAIR: u32 = 12;
const TRIPLE: u32 = 13;
const MATRIX: u32 = 14;
const FOUR: u32 = 15;
const BOOLEAN: u32 = 16;
const BLOCK_TYPE: u32 = 20;
const OWN: u32 = 21;

/// A module whose variable of a storage class holds a struct of these members. `types` are declared before,
/// `decorations` are of the caller's choice.
fn module(class: u32, members: &[u32], types: &[Vec<u32>], decorations: &[Vec<u32>]) -> Vec<u8> {
    let mut list = vec![
        vec![0x0723_0203, 0x0001_0300, 0, 40, 0],
        instruction(17, &[1]),
        instruction(17, &[4433]),
        instruction(17, &[9]),
        instruction(10, &[0x5f56_5053, 0x5f52_484b, 0x6962_3631, 0x74735f74, 0x6761_726f, 0x65]),
        instruction(14, &[0, 1]),
        instruction(15, &[5, 1, u32::from_le_bytes(*b"main"), 0]),
        instruction(16, &[1, 17, 1, 1, 1]),
    ];
    if class == STORAGE_BUFFER {
        list.extend([instruction(71, &[31, 34, 0]), instruction(71, &[31, 33, 0])]);
    }
    list.extend(decorations.to_vec());
    list.extend([
        instruction(19, &[2]),
        instruction(33, &[3, 2]),
        instruction(22, &[FLOAT, 32]),
        instruction(22, &[HALF, 16]),
        instruction(23, &[PAIR, FLOAT, 2]),
        instruction(23, &[TRIPLE, FLOAT, 3]),
        instruction(24, &[MATRIX, PAIR, 3]),
        instruction(21, &[18, 32, 0]),
        instruction(43, &[18, FOUR, 4]),
        instruction(20, &[BOOLEAN]),
    ]);
    list.extend(types.to_vec());
    let mut block = vec![BLOCK_TYPE];
    block.extend(members);
    list.extend([
        instruction(30, &block),
        instruction(32, &[30, class, BLOCK_TYPE]),
        instruction(59, &[30, 31, class]),
        instruction(54, &[2, 1, 0, 3]),
        instruction(248, &[32]),
        instruction(253, &[]),
        instruction(56, &[]),
    ]);
    list.into_iter().flatten().flat_map(u32::to_le_bytes).collect()
}

fn block() -> Vec<u32> {
    instruction(71, &[BLOCK_TYPE, BLOCK])
}

fn offset(member: u32, offset: u32) -> Vec<u32> {
    instruction(72, &[BLOCK_TYPE, member, OFFSET, offset])
}

fn stride(stride: u32) -> Vec<u32> {
    instruction(71, &[OWN, ARRAY_STRIDE, stride])
}

fn array(element: u32) -> Vec<u32> {
    instruction(28, &[OWN, element, FOUR])
}

fn matrix(member: u32, stride: u32, majorness: u32) -> [Vec<u32>; 2] {
    [instruction(72, &[BLOCK_TYPE, member, MATRIX_STRIDE, stride]), instruction(72, &[BLOCK_TYPE, member, majorness])]
}

fn refusal(class: u32, members: &[u32], types: &[Vec<u32>], decorations: &[&[Vec<u32>]]) -> Option<String> {
    Reflection::of(&module(class, members, types, &decorations.concat()), "").err().map(|error| error.to_string())
}

type Case<'a> = (&'a str, &'a [u32], Vec<Vec<u32>>, Vec<Vec<u32>>);

#[test]
fn each_rule_of_layouts_refuses_what_breaks_it() {
    let matrices = |decorations: &[Vec<u32>]| [&[block(), offset(0, 0)], decorations].concat();
    let cases: Vec<Case> = vec![
        ("is decorated Block", &[FLOAT], vec![], vec![offset(0, 0)]),
        ("member 1 has no Offset", &[FLOAT, FLOAT], vec![], vec![block(), offset(0, 0)]),
        (
            "member 1 at 6, which must be a multiple of 4",
            &[HALF, FLOAT],
            vec![],
            vec![block(), offset(0, 0), offset(1, 6)],
        ),
        (
            "member 1 at 8 overlaps another, which ends at 12",
            &[TRIPLE, FLOAT],
            vec![],
            vec![block(), offset(0, 0), offset(1, 8)],
        ),
        (
            "member 0 at 4 overlaps another, which ends at 8",
            &[FLOAT, PAIR],
            vec![],
            vec![block(), offset(0, 4), offset(1, 0)],
        ),
        ("OpTypeArray: has no ArrayStride", &[OWN], vec![array(FLOAT)], vec![block(), offset(0, 0)]),
        (
            "an ArrayStride of 8, which must be 12 at least",
            &[OWN],
            vec![array(TRIPLE)],
            vec![block(), offset(0, 0), stride(8)],
        ),
        (
            "an ArrayStride of 6, which must be a multiple of 4",
            &[OWN],
            vec![array(FLOAT)],
            vec![block(), offset(0, 0), stride(6)],
        ),
        (
            "member 1 at 56 overlaps another, which ends at 60",
            &[OWN, FLOAT],
            vec![array(TRIPLE)],
            vec![block(), offset(0, 0), offset(1, 56), stride(16)],
        ),
        (
            "OpTypeRuntimeArray: has no ArrayStride",
            &[OWN],
            vec![instruction(29, &[OWN, FLOAT])],
            vec![block(), offset(0, 0)],
        ),
        (
            "OpTypeStruct: member 0 has no Offset",
            &[OWN],
            vec![instruction(30, &[OWN, FLOAT])],
            vec![block(), offset(0, 0)],
        ),
        ("a matrix needs RowMajor or ColMajor", &[MATRIX], vec![], matrices(&matrix(0, 8, COLUMN_MAJOR)[..1])),
        ("a matrix needs a MatrixStride", &[MATRIX], vec![], matrices(&matrix(0, 8, COLUMN_MAJOR)[1..])),
        (
            "a MatrixStride of 6, which must be a multiple of 4",
            &[MATRIX],
            vec![],
            matrices(&matrix(0, 6, COLUMN_MAJOR)),
        ),
        ("a MatrixStride of 4, which must be 8 at least", &[MATRIX], vec![], matrices(&matrix(0, 4, COLUMN_MAJOR))),
        ("a MatrixStride of 8, which must be 12 at least", &[MATRIX], vec![], matrices(&matrix(0, 8, ROW_MAJOR))),
        ("a matrix of 24 bytes, of which the ArrayStride around it has room for 20", &[OWN], vec![array(MATRIX)], {
            let mut decorations = matrices(&matrix(0, 8, COLUMN_MAJOR));
            decorations.push(stride(20));
            decorations
        }),
        // A runtime array begins where nothing else is.
        (
            "member 1 at 0 overlaps another, which ends at 4",
            &[FLOAT, OWN],
            vec![instruction(29, &[OWN, FLOAT])],
            vec![block(), offset(0, 0), offset(1, 0), stride(4)],
        ),
        ("OpTypeBool: has no layout", &[BOOLEAN], vec![], vec![block(), offset(0, 0)]),
    ];
    let mut wrong = Vec::new();
    for (wanted, members, types, decorations) in cases {
        // Only buffers hold arrays without a length.
        let unsized_class = types.iter().any(|ty| ty[0] & 0xffff == 29).then_some(STORAGE_BUFFER);
        for class in [STORAGE_BUFFER, unsized_class.unwrap_or(PUSH_CONSTANT)] {
            let said = refusal(class, members, &types, &[&decorations]);
            if !said.as_ref().is_some_and(|said| said.contains(wanted)) {
                wrong.push((wanted, said));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn layouts_are_accepted_in_any_order_and_where_none_is_needed() {
    let all = [
        refusal(STORAGE_BUFFER, &[FLOAT, TRIPLE, HALF], &[], &[&[block(), offset(0, 12), offset(1, 0), offset(2, 18)]]),
        refusal(PUSH_CONSTANT, &[OWN, HALF], &[array(TRIPLE)], &[&[block(), offset(0, 4), offset(1, 64), stride(16)]]),
        refusal(
            PUSH_CONSTANT,
            &[OWN, FLOAT],
            &[array(MATRIX)],
            &[&[block(), offset(0, 0), offset(1, 28 * 3 + 28), stride(28)], &matrix(0, 16, ROW_MAJOR)],
        ),
        // Memory of a workgroup or of an invocation has no layout.
        refusal(WORKGROUP, &[BOOLEAN, OWN, MATRIX], &[array(FLOAT)], &[]),
    ];
    assert_eq!(all, [None, None, None, None]);
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spirv/layouts.comp.spv");
    Reflection::of(&std::fs::read(compiled).unwrap(), "layouts").unwrap();
}

#[test]
fn arrays_of_arrays_are_accepted_whatever_their_size() {
    let mut types = Vec::new();
    let mut decorations = vec![block(), offset(0, 0), offset(1, 4)];
    for depth in 0..4 {
        types.push(instruction(28, &[OWN + depth, if depth == 0 { FLOAT } else { OWN + depth - 1 }, FOUR]));
        decorations.push(instruction(71, &[OWN + depth, ARRAY_STRIDE, 4 << (2 * depth)]));
    }
    let said = refusal(STORAGE_BUFFER, &[FLOAT, OWN + 3], &types, &[&decorations]);
    assert_eq!(said, None);
    decorations.pop();
    decorations.push(instruction(71, &[OWN + 3, ARRAY_STRIDE, u32::MAX - 3]));
    assert_eq!(refusal(STORAGE_BUFFER, &[FLOAT, OWN + 3], &types, &[&decorations]), None);
}

/// Buffers alone know how long an array is that does not say it.
#[test]
fn arrays_without_a_length_are_refused_outside_of_buffers() {
    let runtime = instruction(29, &[OWN, FLOAT]);
    let layout = [block(), offset(0, 0), stride(4)];
    assert_eq!(refusal(STORAGE_BUFFER, &[OWN], std::slice::from_ref(&runtime), &[&layout]), None);
    for (class, decorations) in [(WORKGROUP, &[][..]), (6, &[][..]), (PUSH_CONSTANT, &layout[..])] {
        let found = refusal(class, &[OWN], std::slice::from_ref(&runtime), &[decorations]).expect("a refusal");
        assert!(found.contains("has no length, outside of a buffer"), "{class}: {found}");
    }
    for outer in [instruction(28, &[22, OWN, FOUR]), instruction(29, &[22, OWN])] {
        let found = refusal(STORAGE_BUFFER, &[22], &[runtime.clone(), outer], &[&layout]).expect("a refusal");
        assert!(found.contains("elements of type 21, which has no length"), "{found}");
    }
}

#[test]
fn widths_of_numbers_need_their_capabilities() {
    for (number, needed) in [
        (instruction(22, &[OWN, 64]), "TypeFloat of 64 bits needs one of the capabilities [Float64]"),
        (instruction(21, &[OWN, 64, 0]), "TypeInt of 64 bits needs one of the capabilities [Int64]"),
        (
            instruction(21, &[OWN, 8, 0]),
            "TypeInt of 8 bits needs one of the capabilities [Int8, StorageBuffer8BitAccess",
        ),
    ] {
        let found = refusal(WORKGROUP, &[FLOAT], &[number], &[]).expect("a refusal");
        assert!(found.contains(needed), "{found}");
    }
    assert_eq!(refusal(WORKGROUP, &[FLOAT], &[instruction(21, &[OWN, 16, 0])], &[]), None);
}
