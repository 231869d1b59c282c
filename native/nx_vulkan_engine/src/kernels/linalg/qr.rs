//! Launches that factorize panels of QR: the reflections that take up to 32 columns to R.

use crate::kernels::{Compile, linalg};
use crate::tuning::DeviceModel;
use crate::{Engine, Result, Tensor, Type};

/// Columns of a panel; fixed in the kernels.
pub const PANEL: u64 = 32;

/// Below this a column keeps the sign of its diagonal element: the default `eps` of Nx, whose implementation leaves a
/// column alone when the square of what it has to clear is smaller.
const SMALL: f32 = 1e-10;

/// Bits of the kernels' `flags`.
const POSITIVE: u32 = 1;
const REFLECT_SINGLE: u32 = 2;

/// Rows of a chunk, of which each workgroup takes as many; fixed in the kernels of tall panels.
const CHUNK: u64 = 64;

/// How a panel is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workgroups {
    /// One per matrix, in one dispatch.
    One,
    /// Many per matrix, in a dispatch per column and two more. The panel has more rows than columns.
    Many,
}

/// Whether many workgroups share a panel of so many rows of each of so many matrices.
pub(crate) fn shares(model: &DeviceModel, matrices: u64, height: u64) -> bool {
    height >= model.panels.tall && matrices <= model.panels.most_matrices
}

/// Chunks that each workgroup takes of a panel of so many rows, and workgroups.
pub(crate) fn blocks(model: &DeviceModel, height: u64) -> (u64, u64) {
    let chunks = height.div_ceil(CHUNK * model.panels.most_groups);
    (chunks, height.div_ceil(CHUNK * chunks))
}

/// A panel of a batch of matrices, in the type in which it is computed: columns from a diagonal element on, of which
/// rows are contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Panel<'a> {
    /// `[matrices, rows, columns]`.
    pub columns: &'a Tensor,
    /// The diagonal of R must not be negative.
    pub positive: bool,
    /// A column of one element is reflected, too.
    pub reflects_single: bool,
}

impl Panel<'_> {
    /// What is fastest.
    pub fn workgroups(&self, engine: &Engine) -> Workgroups {
        let [batches, height, _] = self.sizes();
        if shares(engine.model(), batches, height) { Workgroups::Many } else { Workgroups::One }
    }

    /// Replaces the panel by its part of R, and returns V and T of the reflections' product `I - V T V^H`.
    pub fn factorize(&self, engine: &Engine, workgroups: Workgroups, compile: Compile) -> Result<[Tensor; 2]> {
        let (a, dtype) = (self.columns, self.columns.view.dtype);
        let [batches, height, width] = self.sizes();
        let tensor = |shape: &[u64]| Tensor::uninitialized(engine, &Type::new(dtype, shape));
        let (v, t) = (tensor(&[batches, height, width])?, tensor(&[batches, width, width])?);
        let [matrix, row, _] = linalg::strides(a);
        let place = [height as u32, width as u32, row, matrix, batches as u32];
        let mut flags = if self.positive { POSITIVE } else { 0 };
        if self.reflects_single {
            flags |= REFLECT_SINGLE;
        }
        let rules = [flags, SMALL.to_bits()];
        let kernel = |name, operands| linalg::kernel(engine, name, dtype.ctype(), &[dtype; 4][..operands], compile);
        if workgroups == Workgroups::One {
            let numbers = [&place[..], &rules].concat();
            let panel = kernel("qr_panel", 3)?;
            linalg::run(engine, &panel, &[a, &v, &t], 0, &numbers, batches)?;
            return Ok([v, t]);
        }
        let (chunks, blocks) = blocks(engine.model(), height);
        let groups = batches * blocks;
        let sums = tensor(&[batches, PANEL * (3 + 2 * blocks)])?;
        let (begin, column) = (kernel("qr_start", 3)?, kernel("qr_column", 4)?);
        let shares = [blocks as u32, chunks as u32];
        linalg::run(engine, &begin, &[a, &v, &sums], 0, &[&place[..], &shares].concat(), groups)?;
        for pass in 0..=width as u32 {
            let numbers = [&place[..], &shares, &rules, &[pass]].concat();
            linalg::run(engine, &column, &[a, &v, &t, &sums], 0, &numbers, groups)?;
        }
        Ok([v, t])
    }

    /// Matrices, rows and columns.
    fn sizes(&self) -> [u64; 3] {
        std::array::from_fn(|axis| self.columns.view.shape[axis])
    }
}
