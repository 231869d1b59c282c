//! Which results of a launch may lie where its rows do.

use super::{Along, RowPort, RowsSpec};
use crate::kernels::{Arguments, Pairs, in_place};

/// Pairs of places of which the second may share its memory with the first, if nothing else uses either meanwhile.
///
/// An invocation holds its elements of a row before it stores one of them. At the end of a row that is no multiple of
/// its team's elements it reads others', too, and drops what it makes of them, but for extremes, which the team waits
/// for before anything is stored. Teams of rows that are not there may read what is stored already, and store nothing.
/// What is dropped may choose the long form of a function, which has the bits of the short one. Rows that are computed
/// again read their elements again before anything of their workgroup is stored.
pub(super) fn pairs(spec: &RowsSpec, arguments: &Arguments<'_>, first_output: usize) -> Pairs {
    let is_each = |port: &RowPort| port.along != Along::Row && !port.bounded;
    let ports = || spec.inputs.iter().chain(spec.outputs.iter().map(|(_, port)| port));
    // Results lie in the order of the launch's positions, whatever order its axes have.
    let results = (first_output..).zip(&spec.outputs).find(|(_, (_, port))| is_each(port));
    let Some(strides) = results.and_then(|(k, _)| arguments.places.get(k)).map(|place| place.strides) else {
        return Pairs::new();
    };
    in_place::pairs(arguments, first_output, |k| {
        ports().nth(k).is_some_and(is_each) && arguments.places.get(k).is_some_and(|place| place.strides == strides)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nx_vulkan_ir::program::fused::{Computed, Made};
    use nx_vulkan_ir::program::step::{Ref, Step};
    use nx_vulkan_ir::program::{Binary, Elementwise, Reduction, Unary};
    use nx_vulkan_spirv::library::Library;
    use smallvec::smallvec;

    use super::*;
    use crate::{DType, Engine};

    #[test]
    fn pointers_of_rows_may_be_to_the_same_memory() {
        let engine = Engine::open(None).unwrap();
        let step = |op, args| Made::Step(Step { op, args, out: DType::F32 });
        let largest =
            Made::Reduction { reduction: Reduction::Max, tie_high: false, of: Ref::Input(0), out: DType::F32 };
        let difference = step(Elementwise::Binary(Binary::Subtract), smallvec![Ref::Input(0), Ref::Result(0)]);
        let exponential = step(Elementwise::Unary(Unary::Exp), smallvec![Ref::Result(1)]);
        let values = [(largest, true), (difference, false), (exponential, false)];
        for (along, width, full) in [(Along::Vector, 4, true), (Along::Vector, 4, false), (Along::Strided, 1, false)] {
            let port = RowPort { dtype: DType::F32, along, bounded: false };
            let spec = RowsSpec {
                kept_rank: 1,
                row_rank: 1,
                inputs: vec![port],
                values: values.iter().cloned().map(|(made, row)| Computed { made, row, phase: 0 }).collect(),
                outputs: vec![(Ref::Result(2), port)],
                width,
                items: 2,
                team: 64,
                columns: false,
                full,
                exact: false,
            };
            let words = spec.generate(Library::builtin().unwrap(), engine.float_modes().unwrap()).unwrap().words;
            assert_eq!(in_place::exclusive(&words), None, "{along:?} {full}");
        }
    }
}
