//! Launches of products that read the windows of an image among zeros where it lies.

use super::launch::{Choice, Instead, Product, product_with, way};
use super::matrix::{MAX_PLACED_DEPTH, own_by_axes};
use super::{Border, Feed, Tiling};
use crate::kernels::Compile;
use crate::{Engine, Result};

/// A product one of whose operands, the second one or the first, is the windows of an image with a border: its tensor
/// begins with the image's first element, its axes are those of [`super::BorderSpec`], none merged with another.
/// Answers whether units read it in place; if not, nothing was done.
///
/// # Errors
/// As of [`super::product`].
pub fn product_with_border(
    engine: &Engine,
    p: &Product<'_>,
    border: &Border,
    second: bool,
    compile: Compile,
) -> Result<bool> {
    let windows = if second { &p.b } else { &p.a };
    let (sum, is_reduced, choice) = way(engine, p, compile)?;
    let Choice { tiling: Tiling::Matrix(tile), splits } = choice else { return Ok(false) };
    let chunk = p.a.depth.elements().div_ceil(splits).next_multiple_of(tile.block());
    let is_in_place = tile.feed == Feed::Planes && own_by_axes(tile.planes, windows) && chunk <= MAX_PLACED_DEPTH;
    if is_reduced || !is_in_place || windows.free.elements() == 1 {
        return Ok(false);
    }
    product_with(engine, p, sum, choice, Instead::Border(border, second), compile)?;
    Ok(true)
}
