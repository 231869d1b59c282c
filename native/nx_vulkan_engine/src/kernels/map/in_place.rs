//! Which results of a launch may lie where its operands do.

use nx_vulkan_spirv::access::Layout;

use super::Spec;
use crate::kernels::{Arguments, Pairs, in_place};

/// Whether the elements of an operand of such a layout lie in the order of a launch's positions, without gaps.
pub(super) fn is_whole(layout: Layout, arguments: &Arguments<'_>) -> bool {
    layout == Layout::Contiguous || arguments.count == 1 && !layout.is_bounded()
}

/// Pairs of places of which the second may share its memory with the first, if nothing else uses either meanwhile.
///
/// An invocation of a map loads all inputs of its elements before it stores one of them, and loads no others. Lanes of
/// blocks also load their neighbours' elements, but drop what they find. No pointer of a map is declared to be the only
/// one to its memory, or to memory that nobody writes, so that compilers keep that order.
pub(super) fn pairs(spec: &Spec, arguments: &Arguments<'_>, first_output: usize) -> Pairs {
    if spec.shift.is_some() {
        return Pairs::new();
    }
    let ports = || spec.inputs.iter().chain(spec.outputs.iter().map(|(_, port)| port));
    in_place::pairs(arguments, first_output, |k| ports().nth(k).is_some_and(|port| is_whole(port.layout, arguments)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use smallvec::smallvec;

    use crate::kernels::in_place;
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
            (1, Form::Exact),
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
                sharing: engine.model().maps.sharing,
            };
            let words = spec.generate(Library::builtin().unwrap(), engine.float_modes().unwrap()).unwrap().words;
            assert_eq!(in_place::exclusive(&words), None, "{form:?}");
        }
    }
}
