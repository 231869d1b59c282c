use std::collections::HashSet;

use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Instruction, Operand};
use rspirv::spirv::{AddressingModel, Capability, ExecutionModel, FunctionControl, MemoryModel, Word};

use super::{Lacks, lower};

/// Words of a kernel whose one block is what `code` writes.
fn kernel(code: impl FnOnce(&mut Builder)) -> Vec<u32> {
    let mut made = Builder::new();
    made.set_version(1, 5);
    for capability in [Capability::Shader, Capability::Int64, Capability::Float64, Capability::Int16, Capability::Int8]
    {
        made.capability(capability);
    }
    made.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let void = made.type_void();
    let ty = made.type_function(void, vec![]);
    let main = made.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    made.begin_block(None).unwrap();
    code(&mut made);
    made.ret().unwrap();
    made.end_function().unwrap();
    made.entry_point(ExecutionModel::GLCompute, main, "main", vec![]);
    made.module().assemble()
}

/// Ids that instructions of functions name and nothing makes.
fn undefined(words: &[u32]) -> Vec<Word> {
    let module = rspirv::dr::load_words(words).unwrap();
    let made: HashSet<Word> = module.all_inst_iter().filter_map(|inst| inst.result_id).collect();
    let named = |inst: &Instruction| inst.operands.iter().filter_map(Operand::id_ref_any).collect::<Vec<Word>>();
    let mut missing: Vec<Word> =
        module.functions.iter().flat_map(|function| function.all_inst_iter()).flat_map(named).collect();
    missing.retain(|id| !made.contains(id));
    missing
}

#[test]
fn values_stay_beside_what_has_their_bits() {
    let words = kernel(|made| {
        let (ulong, double) = (made.type_int(64, 0), made.type_float(64, None));
        let two = made.constant_bit64(ulong, 2);
        let number = made.i_add(ulong, None, two, two).unwrap();
        let float = made.bitcast(double, None, number).unwrap();
        made.f_add(double, None, float, float).unwrap();
        made.i_add(ulong, None, number, two).unwrap();
        let (signed, bits) = (made.type_int(64, 1), made.bitcast(ulong, None, float).unwrap());
        let signed = made.bitcast(signed, None, bits).unwrap();
        made.i_add(ulong, None, bits, signed).unwrap();
    });
    let narrow = kernel(|made| {
        for bits in [8, 16] {
            let (small, word) = (made.type_int(bits, 0), made.type_int(32, 0));
            let two = made.constant_bit32(small, 2);
            let number = made.i_add(small, None, two, two).unwrap();
            let wide = made.u_convert(word, None, number).unwrap();
            made.i_add(word, None, wide, wide).unwrap();
            made.i_add(small, None, number, two).unwrap();
        }
    });
    for words in [words, narrow] {
        assert!(undefined(&words).is_empty());
        for lacks in [
            Lacks::ALL,
            Lacks { int64: false, ..Lacks::ALL },
            Lacks { float64: false, ..Lacks::ALL },
            Lacks { int8: false, ..Lacks::ALL },
        ] {
            let missing = undefined(&lower(&words, lacks).unwrap());
            assert!(missing.is_empty(), "{lacks:?}: {missing:?}");
        }
    }
}
