//! Which results of a launch may lie where its operands do.

use std::sync::Arc;

use nx_vulkan_spirv::access::Layout;
use smallvec::SmallVec;

use super::Spec;
use crate::kernels::{Arguments, Pairs, Place};

impl Place<'_> {
    fn is_of(&self, other: &Place<'_>) -> bool {
        Arc::ptr_eq(self.buffer, other.buffer)
    }

    /// Where in its buffer it begins.
    fn begin(&self) -> u64 {
        self.address.wrapping_sub(self.buffer.address())
    }

    /// Whether each index has its element at the same bytes of the two buffers, where both have the layout of the
    /// launch's positions.
    fn lies_as(&self, other: &Place<'_>) -> bool {
        self.element_bytes == other.element_bytes && self.begin() == other.begin()
    }
}

/// Whether the elements of an operand of such a layout lie in the order of a launch's positions, without gaps.
pub(super) fn is_whole(layout: Layout, arguments: &Arguments<'_>) -> bool {
    layout == Layout::Contiguous || arguments.count == 1 && !layout.is_bounded()
}

/// Pairs of places of which the second may share its memory with the first, if nothing else uses either meanwhile.
///
/// An invocation of a map loads all inputs of its elements before it stores one of them, and loads no others: where an
/// input's element lies at the bytes of the output's, nobody else has written it. Lanes of blocks also load their
/// neighbours' elements, but drop what they find. No pointer of a map is declared to be the only one to its memory, or
/// to memory that nobody writes, so that compilers keep that order. Other kernels read elements that other invocations
/// write.
pub(super) fn pairs(spec: &Spec, arguments: &Arguments<'_>, first_output: usize) -> Pairs {
    let Some((inputs, outputs)) = arguments.places.split_at_checked(first_output) else { return Pairs::new() };
    if spec.shift.is_some() {
        return Pairs::new();
    }
    let is_whole = |layout: Layout| is_whole(layout, arguments);
    let ports = spec.inputs.iter().zip(inputs).enumerate();
    // What is read in two ways is read where others write.
    let read_once = |input: &Place<'_>| {
        let mut same = spec.inputs.iter().zip(inputs).filter(|(_, other)| other.is_of(input));
        same.all(|(port, other)| is_whole(port.layout) && other.lies_as(input))
            && !outputs.iter().any(|output| output.is_of(input))
    };
    let read: SmallVec<[(usize, &Place<'_>); 4]> = ports
        .filter(|(_, (port, input))| is_whole(port.layout) && read_once(input))
        .map(|(k, (_, input))| (k, input))
        .collect();
    let mut pairs = Pairs::new();
    for (i, ((_, port), output)) in spec.outputs.iter().zip(outputs).enumerate() {
        let written_once = outputs.iter().filter(|other| other.is_of(output)).count() == 1;
        if is_whole(port.layout) && written_once {
            let fitting = read.iter().filter(|(_, input)| input.lies_as(output));
            pairs.extend(fitting.map(|&(k, _)| (k, first_output + i)));
        }
    }
    pairs
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rspirv::dr::Operand;
    use rspirv::spirv::Decoration;
    use smallvec::smallvec;

    use crate::kernels::map::{Form, Port, Spec};
    use crate::program::{Binary, Elementwise, Unary};
    use crate::{DType, Engine};
    use nx_vulkan_ir::program::step::{Ref, Step};
    use nx_vulkan_spirv::access::Element;
    use nx_vulkan_spirv::library::Library;

    use super::Layout;

    #[test]
    fn pointers_of_maps_may_be_to_the_same_memory() {
        let engine = Engine::open(None).unwrap();
        let port = Port { element: Element::Typed(DType::F32), layout: Layout::Contiguous };
        let forms = [
            (1, Form::Single),
            (1, Form::Vectors),
            (4, Form::Vectors),
            (4, Form::Pairs),
            (2, Form::Blocks { vectors: 8 }),
        ];
        for (width, form) in forms {
            let spec = Spec {
                inputs: smallvec![port; 2],
                steps: smallvec![
                    Step {
                        op: Elementwise::Binary(Binary::Add),
                        args: smallvec![Ref::Input(0), Ref::Input(1)],
                        out: DType::F32
                    },
                    Step { op: Elementwise::Unary(Unary::Sin), args: smallvec![Ref::Result(0)], out: DType::F32 },
                ],
                outputs: smallvec![(Ref::Result(0), port), (Ref::Result(1), port)],
                rank: 1,
                width,
                form,
                fixed: None,
                numbers: Default::default(),
                shift: None,
            };
            let words = spec.generate(Library::builtin().unwrap(), engine.float_modes().unwrap()).unwrap().words;
            let module = rspirv::dr::load_words(&words).unwrap();
            let exclusive = [Decoration::Restrict, Decoration::RestrictPointer, Decoration::NonWritable];
            let is_exclusive = |operand: &Operand| matches!(operand, Operand::Decoration(d) if exclusive.contains(d));
            let found = module.annotations.iter().find(|annotation| annotation.operands.iter().any(is_exclusive));
            assert_eq!(found, None, "{form:?}");
        }
    }
}
