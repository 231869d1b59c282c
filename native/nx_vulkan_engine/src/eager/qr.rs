//! QR by blocked Householder reflections: panels of 32 columns, everything else as products.

use smallvec::smallvec;

use super::call::{Call, Results};
use super::copies;
use super::matrix::{Work, check, compute_type, in_type, near_rows, part, ranges};
use crate::kernels::linalg::qr::{self as launch, PANEL};
use crate::kernels::reach_of;
use crate::program::Binary;
use crate::program::ops::Visitor;
use crate::program::ops::matrix::Qr;
use crate::{Result, Tensor};

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

impl Visitor<Qr, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Qr) -> Result<Results> {
        qr(self, op.complete)
    }
}

/// Q and R of an op's operand.
fn qr(call: &Call<'_>, complete: bool) -> Result<Results> {
    let outs = call.outs;
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
    let (steps, most) = (rows.min(columns), work.engine.reach().far());
    let (mut panels, mut first) = (vec![], 0);
    while first < steps {
        let height = rows - first;
        let width = PANEL.min(steps - first).min((most / height).max(1));
        let place = part(a, first, first, [height, width])?;
        // Factorized in a copy where no launch reaches it in its matrix.
        let is_reached = batches > 1 || reach_of(&place.view) <= most;
        let own = if is_reached { place.clone() } else { copies::copied(work.engine, &place, work.compile)? };
        let panel =
            launch::Panel { columns: &own, positive: diagonal == Diagonal::Positive, reflects_single: rows < columns };
        let [v, t] = panel.factorize(work.engine, panel.workgroups(work.engine), work.compile)?;
        if !is_reached {
            copies::copy(work.engine, &own, &place, work.compile)?;
        }
        let next = first + width;
        if next < columns {
            let rest = part(a, first, next, [height, columns - next])?;
            reflect(work, &v, &work.adjoint(&t)?, &rest)?;
        }
        panels.push(Panel { first, v, t });
        first = next;
    }
    Ok(Reflections { panels, batches, rows })
}

/// Replaces `target` by `I - V T V^H` times itself. Where launches would have to reach far, some columns after the
/// other, and of these some rows.
fn reflect(work: &Work<'_>, v: &Tensor, t: &Tensor, target: &Tensor) -> Result<()> {
    let (batches, width) = (v.view.shape[0], v.view.shape[2]);
    let (rows, columns) = (target.view.shape[1], target.view.shape[2]);
    let near = work.engine.reach().near(work.dtype().size_bytes());
    let step = if batches > 1 { columns } else { (near / width).clamp(1, columns) };
    let adjoint = work.adjoint(v)?;
    for (left, columns) in ranges(columns, step) {
        let target = part(target, 0, left, [rows, columns])?;
        let mut projected: Option<Tensor> = None;
        for (first, rows) in near_rows(work.engine, &[&target], 1) {
            let (left, right) = (part(&adjoint, 0, first, [width, rows])?, part(&target, first, 0, [rows, columns])?);
            let product = work.multiply(&left, &right)?;
            match &projected {
                Some(sum) => work.change(sum, Binary::Add, &product)?,
                None => projected = Some(product),
            }
        }
        let Some(projected) = projected else { continue };
        let projected = work.multiply(t, &projected)?;
        work.subtract_product(&target, v, &projected)?;
    }
    Ok(())
}

impl Reflections {
    /// The first `columns` columns of Q.
    pub fn q(&self, work: &Work<'_>, columns: u64) -> Result<Tensor> {
        let q = work.identity(self.batches, self.rows, columns)?;
        for panel in self.panels.iter().rev() {
            // What lies left of the panel is still that of the identity.
            let rest = part(&q, panel.first, panel.first, [self.rows - panel.first, columns - panel.first])?;
            reflect(work, &panel.v, &panel.t, &rest)?;
        }
        Ok(q)
    }

    /// Replaces `target` by Q times itself.
    pub fn apply(&self, work: &Work<'_>, target: &Tensor) -> Result<()> {
        let columns = target.view.shape[2];
        for panel in self.panels.iter().rev() {
            let rest = part(target, panel.first, 0, [self.rows - panel.first, columns])?;
            reflect(work, &panel.v, &panel.t, &rest)?;
        }
        Ok(())
    }
}
