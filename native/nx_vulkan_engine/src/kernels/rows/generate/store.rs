//! How kernels of rows store what they have computed.

use std::collections::HashMap;
use std::ops::Range;

use nx_vulkan_ir::Result;
use nx_vulkan_ir::program::step::Ref;
use nx_vulkan_spirv::access::{self, Element};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::{Along, Emission, Held, RowPort, missing};

/// What is stored: the number of its operand, how that lies, and the values.
struct Output {
    place: u8,
    port: RowPort,
    held: Held,
}

impl Output {
    /// The value of an invocation's element.
    fn element(&self, k: usize) -> Result<Word> {
        self.held.at(k).map(|value| value.id).ok_or_else(|| missing(Ref::Linear))
    }
}

impl Emission<'_, '_, '_, '_> {
    pub(super) fn store(&mut self, live: Word) -> Result<()> {
        let outputs = (self.spec.inputs.len() as u8..).zip(&self.spec.outputs);
        let outputs = outputs.map(|(place, &(r, port))| Ok(Output { place, port, held: self.find(r)? }));
        let (of_rows, of_elements): (Vec<Output>, Vec<Output>) =
            outputs.collect::<Result<Vec<_>>>()?.into_iter().partition(|output| output.port.along == Along::Row);
        let (bool_type, zero) = (self.code.linker.type_bool(), self.code.linker.const_u32(0));
        if !of_rows.is_empty() {
            let first = self.code.ids(SpirvOp::IEqual, bool_type, &[self.lane, zero]);
            let stores = self.code.ids(SpirvOp::LogicalAnd, bool_type, &[first, live]);
            self.store_rows(&of_rows, stores)?;
        }
        if !of_elements.is_empty() {
            self.store_elements(&of_elements, live)?;
        }
        Ok(())
    }

    /// Stores what a row has one of, in the invocation that `stores`.
    fn store_rows(&mut self, outputs: &[Output], stores: Word) -> Result<()> {
        let bool_type = self.code.linker.type_bool();
        let idle = self.code.ids(SpirvOp::LogicalNot, bool_type, &[stores]);
        let (params, row) = (&mut *self.params, self.row);
        self.code.unless(idle, |code| {
            for output in outputs {
                let address = params.address(output.place);
                access::store(code, address, Element::Typed(output.port.dtype), row, output.element(0)?)?;
            }
            Ok(())
        })
    }

    /// Stores what each element has one of: all of an invocation's if a row is full, or else vector by vector.
    fn store_elements(&mut self, outputs: &[Output], live: Word) -> Result<()> {
        let bool_type = self.code.linker.type_bool();
        let loads = self.loads.clone();
        let together = if self.spec.full { loads.len().max(1) } else { 1 };
        for (chunk, loads) in loads.chunks(together).enumerate() {
            let stores = match *loads {
                [(_, Some(exists))] => self.code.ids(SpirvOp::LogicalAnd, bool_type, &[exists, live]),
                _ => live,
            };
            let idle = self.code.ids(SpirvOp::LogicalNot, bool_type, &[stores]);
            let (spec, params, outer) = (self.spec, &mut *self.params, self.outer.clone());
            let (row, lane, places, way) = (self.row, self.lane, self.places.clone(), self.way);
            self.code.unless(idle, |code| {
                let mut inside = Emission {
                    spec,
                    code,
                    params,
                    row,
                    lane,
                    outer,
                    loads: Vec::new(),
                    places,
                    held: HashMap::new(),
                    way,
                    extremes: HashMap::new(),
                    least_exponents: HashMap::new(),
                };
                outputs.iter().try_for_each(|output| inside.store_output(output, chunk * together, loads))
            })?;
        }
        Ok(())
    }

    /// Stores the elements of the vectors from `item` on that were loaded there, or of all where they lie side by side.
    fn store_output(&mut self, output: &Output, item: usize, loads: &[(Word, Option<Word>)]) -> Result<()> {
        let Output { place, port, .. } = *output;
        let (address, element) = (self.params.address(place), Element::Typed(port.dtype));
        let (spec, width) = (self.spec, usize::from(self.spec.width));
        let vector =
            |elements: Range<usize>| elements.map(|e| output.element(e)).collect::<Result<SmallVec<[Word; 4]>>>();
        if port.along == Along::Vector && self.is_dense() {
            let first = self.first_vector(place, element)?;
            for item in 0..u32::from(spec.items) {
                let start = item as usize * width;
                let ids = vector(start..start + width)?;
                let place = self.code.linker.const_u32(item * spec.team);
                access::store_vector_at(self.code, first, element, place, &ids)?;
            }
            return Ok(());
        }
        for (item, (first, _)) in (item..).zip(loads) {
            let elements = item * width..(item + 1) * width;
            if port.along == Along::Vector && width > 1 {
                let ids = vector(elements)?;
                let at = self.position(place, Some(*first))?;
                let width = self.code.linker.const_u32(spec.width.into());
                let group = self.code.u32_op(SpirvOp::UDiv, at, width);
                access::store_vector(self.code, address, element, group, &ids)?;
                continue;
            }
            for e in elements {
                let at = self.position(place, Some(self.places[e]))?;
                access::store(self.code, address, element, at, output.element(e)?)?;
            }
        }
        Ok(())
    }
}
