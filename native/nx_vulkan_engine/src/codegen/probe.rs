//! A kernel that tells whether fma rounds once on a device.

use super::access::{self, Element, Param, ParamLayout};
use super::elementwise::{Generated, ITEMS, LOCAL_SIZE, arg};
use super::library::Library;
use super::link::{FloatModes, Linker};
use super::templates;
use crate::{DType, Result};

/// `out[i] = fma(a[i], b[i], -(a[i] * b[i]))` in f32 or f64.
pub fn generate(library: &Library, modes: FloatModes, dtype: DType) -> Result<Generated> {
    let name = "elementwise";
    let template = templates::template(name)?;
    let mut linker = Linker::new(library, name, &template, false, modes)?;
    let mut params = ParamLayout::new(&[Param::Count]);
    linker.define("slot_element", |code, args| {
        let (at, element) = (arg(args, 0)?, Element::Typed(dtype));
        let operands = [params.address(0), params.address(1)];
        let a = access::load(code, operands[0], element, at)?;
        let b = access::load(code, operands[1], element, at)?;
        let residual = code.call(&format!("nx_fma_probe_{dtype}"), &[a, b])?;
        let address = params.address(2);
        access::store(code, address, element, at, residual)?;
        Ok(None)
    })?;
    Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: LOCAL_SIZE * ITEMS })
}
