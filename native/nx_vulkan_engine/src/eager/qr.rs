//! QR by blocked Householder reflections: panels of 32 columns, everything else as products.

use smallvec::smallvec;

use super::call::{Call, Results};
use super::matrix::{Work, check, compute_type, in_type, part};
use crate::kernels::linalg::qr::{self as launch, PANEL};
use crate::{Result, Tensor, Type};

/// Reflections of one panel: `I - V T V^H` on the rows from `first` on.
#[derive(Debug)]
pub struct Panel {
    pub first: u64,
    pub v: Tensor,
    pub t: Tensor,
}

/// The reflections that took a batch of matrices to R.
#[derive(Debug)]
pub struct Reflections {
    pub panels: Vec<Panel>,
    pub batches: u64,
    pub rows: u64,
}

/// What the diagonal of R may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Diagonal {
    /// As Nx's default implementation has it.
    Nx,
    /// Not negative; real matrices only.
    Positive,
}

/// Q and R of an op's operand.
pub fn qr(call: &Call<'_>, complete: bool, outs: &[Type]) -> Result<Results> {
    check(call, outs)?;
    let a = call.operand(0)?;
    let [q_out, r_out] = outs else { return Err(call.invalid(format!("has two results, got {}", outs.len()))) };
    let work = Work { engine: call.engine, compute: compute_type(a.view.dtype), compile: call.compile };
    let r = work.copy(a)?;
    let (rows, columns) = (r.view.shape[1], r.view.shape[2]);
    let reflections = factorize(&work, &r, Diagonal::Nx)?;
    let kept = if complete { rows } else { rows.min(columns) };
    let q = reflections.q(&work, kept)?;
    let r = part(&r, 0, 0, [kept, columns])?;
    Ok(smallvec![in_type(&work, &q, q_out)?, in_type(&work, &r, r_out)?])
}

/// Replaces every matrix of the batch by its R.
pub fn factorize(work: &Work<'_>, a: &Tensor, diagonal: Diagonal) -> Result<Reflections> {
    let (batches, rows, columns) = (a.view.shape[0], a.view.shape[1], a.view.shape[2]);
    let steps = rows.min(columns);
    let mut panels = vec![];
    for first in (0..steps).step_by(PANEL as usize) {
        let panel = launch::Panel { matrices: a, first, positive: diagonal == Diagonal::Positive };
        let [v, t] = panel.factorize(work.engine, panel.workgroups(work.engine), work.compile)?;
        let (height, next) = (rows - first, steps.min(first + PANEL));
        if next < columns {
            let rest = part(a, first, next, [height, columns - next])?;
            let projected = work.multiply(&work.adjoint(&v)?, &rest)?;
            let projected = work.multiply(&work.adjoint(&t)?, &projected)?;
            work.subtract(&rest, &work.multiply(&v, &projected)?)?;
        }
        panels.push(Panel { first, v, t });
    }
    Ok(Reflections { panels, batches, rows })
}

impl Reflections {
    /// The first `columns` columns of Q.
    pub fn q(&self, work: &Work<'_>, columns: u64) -> Result<Tensor> {
        let q = work.identity(self.batches, self.rows, columns)?;
        for panel in self.panels.iter().rev() {
            // What lies left of the panel is still that of the identity.
            let rest = part(&q, panel.first, panel.first, [self.rows - panel.first, columns - panel.first])?;
            Self::apply_panel(work, panel, &rest)?;
        }
        Ok(q)
    }

    /// Replaces `target` by Q times itself.
    pub fn apply(&self, work: &Work<'_>, target: &Tensor) -> Result<()> {
        let columns = target.view.shape[2];
        for panel in self.panels.iter().rev() {
            let rest = part(target, panel.first, 0, [self.rows - panel.first, columns])?;
            Self::apply_panel(work, panel, &rest)?;
        }
        Ok(())
    }

    fn apply_panel(work: &Work<'_>, panel: &Panel, target: &Tensor) -> Result<()> {
        let projected = work.multiply(&work.adjoint(&panel.v)?, target)?;
        let projected = work.multiply(&panel.t, &projected)?;
        work.subtract(target, &work.multiply(&panel.v, &projected)?)
    }
}
