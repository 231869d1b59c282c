//! Passes on what was recorded from Nx.

use nx_vulkan_ir::Result;
use nx_vulkan_ir::program::passes::{Heads, Recompute, Saving, Target, optimize};
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_ir::program::{Builder, Op};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::recordings::replay;

/// A GPU without matrix units.
pub fn target(saving: Saving) -> Target {
    Target {
        rows: RowLimits { elements: 1 << 15, invocations: 1024, planned_invocations: 1024 },
        chooses_parts: true,
        joins_small_ops: false,
        iteration_work: 1 << 20,
        max_work: 1 << 34,
        short_bytes: 64 << 20,
        short_flops: 1 << 28,
        matrix_units: false,
        half_units: false,
        heads: Heads::default(),
        fusion: true,
        workgroups: false,
        saving,
        recompute: Recompute { flops_per_byte: 16, shares: 1, most_per_byte: 6 },
    }
}

#[test]
fn recorded_programs_give_nx_results_whatever_kernels_save() {
    for saving in [Saving::Nothing, Saving::Order, Saving::Kernels, Saving::Reductions] {
        replay(|recording| {
            let program = optimize(recording.program.clone(), &target(saving))?;
            let types = program.inputs.iter().zip(&recording.inputs);
            let inputs = types.map(|(ty, bytes)| Array::from_nx_bytes(ty, bytes)).collect::<Result<Vec<_>>>()?;
            Ok(reference::run(&program, &inputs)?.iter().map(Array::to_nx_bytes).collect())
        });
    }
}

#[test]
fn slices_of_parts_of_other_types_have_the_type_of_all() {
    for axis in [0, 1] {
        let b = Builder::new();
        let parts = [DType::F32, DType::F64, DType::F32].map(|dtype| b.input(dtype, &[1, 3, 3]));
        let shape: &[u64] = if axis == 0 { &[3, 3, 3] } else { &[1, 9, 3] };
        let whole = b.push(Op::Concatenate { axis }, &parts, &Type::new(DType::F64, shape));
        let slice = b.slice(whole, &[0, 0, 0], &[1, 1, 3]);
        let program = b.finish(&[slice]).unwrap();
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        let values = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| Value::Float(i as f64 + 0.5)));
        let inputs: Vec<Array> = program.inputs.iter().map(values).collect();
        assert_eq!(reference::run(&optimized, &inputs).unwrap(), reference::run(&program, &inputs).unwrap());
    }
}
