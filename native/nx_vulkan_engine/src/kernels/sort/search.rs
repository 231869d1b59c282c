//! Places of values in sorted rows, by the keys of sorts.

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::Linker;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};

use super::SortKey;
use crate::kernels::family::KernelSpec;
use crate::kernels::{Arguments, Compile, Place, launch};
use crate::{Engine, Error, Result, Tensor};

/// Values that one workgroup takes.
const LOCAL_SIZE: u64 = 256;

/// The key under which a search is compiled once. Elements of `bytes` bytes. Operands: rows, values, places.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SearchSpec {
    bytes: u8,
}

impl KernelSpec for SearchSpec {
    fn name(&self) -> String {
        format!("sort.search.{}_bytes", self.bytes)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let name = format!("sort_search_{}", self.bytes.div_ceil(4));
        let mut linker = Linker::new(library, &name, false, modes)?;
        let mut params = ParamLayout { words: (0..8).map(Param::Extra).collect(), fixed: None };
        for (slot, operand) in [("slot_load", 0), ("slot_value", 1)] {
            linker.define(slot, |code, args| {
                let address = params.address(operand);
                access::load(code, address, Element::Raw(self.bytes), arg(args, 0)?).map(Some)
            })?;
        }
        linker.define("slot_store", |code, args| {
            let address = params.address(2);
            access::store(code, address, Element::Raw(4), arg(args, 0)?, arg(args, 1)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: 0 })
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

/// For each of the values how many elements of its row come before it. Each of `rows` has as many values. All tensors
/// are contiguous; those that are compared have one type.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    pub sorted: &'a Tensor,
    pub values: &'a Tensor,
    /// Of 32 bits.
    pub places: &'a Tensor,
    pub rows: u64,
    pub elements: u64,
    /// Equal elements come before a value, too.
    pub right: bool,
}

pub fn search(engine: &Engine, what: &Search<'_>, compile: Compile) -> Result<()> {
    let dtype = what.sorted.view.dtype;
    let size = dtype.size_bytes();
    // Places take four bytes.
    let (limit, most) = (engine.reach().near(size.max(4)), engine.reach().far());
    if what.elements > most {
        return Err(Error::TooLarge { size_bytes: what.elements * size, limit_bytes: most * size });
    }
    let kernel = engine.kernel_reaching(&SearchSpec { bytes: size as u8 }, what.elements > limit, compile)?;
    let key = SortKey { dtype, descending: false }.params();
    let per_row = what.values.view.elements() / what.rows.max(1);
    // A launch takes whole rows, or values of one.
    let rows_per_launch = (limit / what.elements.max(per_row).max(1)).max(1);
    let values_per_launch = (rows_per_launch * per_row).min(limit).max(1);
    let mut first = 0;
    while first < what.values.view.elements() {
        let row = first / per_row;
        let end = ((row + rows_per_launch).min(what.rows) * per_row).min(first + values_per_launch);
        let place = |tensor: &Tensor, at: u64, bytes: u64| tensor.address() + at * bytes;
        let [sorted, values, places] = [
            (what.sorted, place(what.sorted, row * what.elements, size)),
            (what.values, place(what.values, first, size)),
            (what.places, place(what.places, first, 4)),
        ]
        .map(|(tensor, address)| Place { buffer: &tensor.buffer, address, strides: &[], element_bytes: 0 });
        let counts = [end - first, per_row.min(limit), what.elements, u64::from(what.right)].map(|count| count as u32);
        let extra: Vec<u32> = key.into_iter().chain(counts).collect();
        let arguments = Arguments { count: 0, sizes: &[], places: &[sorted, values, places], extra: &extra };
        launch(engine, &kernel, &arguments, 2, (end - first).div_ceil(LOCAL_SIZE))?;
        first = end;
    }
    Ok(())
}
