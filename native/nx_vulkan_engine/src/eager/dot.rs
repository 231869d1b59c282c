//! dot with any contraction and batch axes, as a batched matrix product.

use nx_vulkan_ir::program::step::{Prologue, Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::SmallVec;

use super::call::Call;
use super::{copies, movement};
use crate::kernels::dot::{Derived, Epilogue, Matrix, MergedAxes, Product, product, product_of_derived, product_pair};
use crate::kernels::map::Operand;
use crate::program::attribute::Axes;
use crate::{DType, Result, Tensor, Type, View};

/// Elementwise steps that follow a product in its kernel.
#[derive(Debug)]
pub struct Then {
    /// What the steps read beside the product, with the shape of its results.
    pub inputs: SmallVec<[Tensor; 2]>,
    /// Input 0 is the product, or inputs 0 and 1 are both, those after it are `inputs`.
    pub steps: SmallVec<[Step; 1]>,
    pub result: Ref,
    /// The type that is stored.
    pub dtype: DType,
}

/// The product of operands that may take steps as they are loaded, or what follows it.
pub fn dot(
    call: &Call<'_>,
    contract: [&Axes; 2],
    batch: [&Axes; 2],
    prologues: [Option<Prologue>; 2],
    then: Option<&Then>,
) -> Result<Tensor> {
    let run = |p: &Product<'_>| product(call.engine, p, call.compile);
    launched(call, contract, batch, prologues, then, run).map(|(result, ())| result)
}

/// The result of a product, and what its launch answers.
fn launched<T>(
    call: &Call<'_>,
    contract: [&Axes; 2],
    batch: [&Axes; 2],
    prologues: [Option<Prologue>; 2],
    then: Option<&Then>,
    launch: impl FnOnce(&Product<'_>) -> Result<T>,
) -> Result<(Tensor, T)> {
    let (a, b) = (call.operand(0)?, call.operand(1)?);
    let dtype = then.map_or(call.out.dtype, |t| t.dtype);
    let result = Tensor::uninitialized(call.engine, &Type::new(dtype, &call.out.shape))?;
    let left = matrix(call, a, batch[0], contract[0], true)?;
    let right = matrix(call, b, batch[1], contract[1], false)?;
    if left.batch.elements() != right.batch.elements() || left.depth.elements() != right.depth.elements() {
        return Err(call.invalid(format!(
            "{:?} and {:?} do not contract along {:?} and {:?}",
            a.view.shape, b.view.shape, contract[0], contract[1]
        )));
    }
    let (rows, columns) = (left.free.elements(), right.free.elements());
    if left.batch.elements() * rows * columns != call.out.elements() {
        return Err(call.invalid(format!("{rows} x {columns} results for {:?}", call.out.shape)));
    }
    let inputs = then.map_or(&[][..], |t| &t.inputs);
    let views: SmallVec<[View; 2]> = inputs.iter().map(|t| View::clone(&t.view)).collect();
    let operands = operands(inputs, &views);
    let epilogue = then.map(|t| t.epilogue(call.out.dtype, &operands));
    let answer = launch(&Product { a: left, b: right, prologues, out: &result, epilogue })?;
    Ok((result, answer))
}

/// Two products by one operand, whose other operand is at `place` and beside it an `other` one, and what follows both;
/// `None` where no kernel does both.
pub fn pair(
    call: &Call<'_>,
    contract: [&Axes; 2],
    batch: [&Axes; 2],
    (other, place): (&Tensor, usize),
    then: &Then,
) -> Result<Option<Tensor>> {
    let beside = matrix(call, other, batch[place], contract[place], place == 0)?;
    let (result, done) = launched(call, contract, batch, [None, None], Some(then), |product| {
        product_pair(call.engine, product, &beside, place, call.compile)
    })?;
    Ok(done.then_some(result))
}

/// Few vectors by a matrix that is computed, in the place of the operand at `place`, and what follows; `None` where no
/// kernel does that.
pub fn derived(
    call: &Call<'_>,
    contract: [&Axes; 2],
    batch: [&Axes; 2],
    derived: (&Derived, usize),
    then: Option<&Then>,
) -> Result<Option<Tensor>> {
    let (result, done) = launched(call, contract, batch, [None, None], then, |product| {
        product_of_derived(call.engine, product, derived, call.compile)
    })?;
    Ok(done.then_some(result))
}

impl Then {
    /// The epilogue of the launch, with operands as the results lie there.
    pub fn epilogue<'a>(&'a self, dtype: DType, inputs: &'a [Operand<'a>]) -> Epilogue<'a> {
        Epilogue { dtype, inputs, steps: &self.steps, result: self.result }
    }
}

/// Tensors through other views of theirs.
pub fn operands<'t>(tensors: &'t [Tensor], views: &[View]) -> SmallVec<[Operand<'t>; 2]> {
    let one = |(t, view): (&'t Tensor, &View)| Operand::new(&t.buffer, view, Element::Typed(view.dtype));
    tensors.iter().zip(views).map(one).collect()
}

/// An operand with its batch, free and contracted axes grouped.
fn matrix(call: &Call<'_>, tensor: &Tensor, batch: &Axes, contract: &Axes, is_left: bool) -> Result<Matrix> {
    let rank = tensor.view.shape.len();
    let free: Axes = (0..rank).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect();
    let groups = if is_left { [batch, &free, contract] } else { [batch, contract, &free] };
    let order: Axes = groups.iter().flat_map(|g| g.iter().copied()).collect();
    let tensor = &movement::ascending(call, tensor)?;
    let view = tensor.view.transpose(&order)?;
    // Free and contracted axes merge to one each, or the operand is copied; batches may lie anywhere.
    let grouped = |tensor: &Tensor| -> Option<Matrix> {
        let mut at = 0;
        let [batch, second, third] = groups.map(|group| {
            let range = at..at + group.len();
            at = range.end;
            MergedAxes::new(&tensor.view.shape[range.clone()], &tensor.view.strides[range])
        });
        let (free, depth) = if is_left { (second, third) } else { (third, second) };
        let merged = free.rank() == 1 && depth.rank() == 1;
        merged.then(|| Matrix { tensor: tensor.clone(), batch, free, depth })
    };
    let tensor = tensor.with_view(view);
    match grouped(&tensor) {
        Some(matrix) => Ok(matrix),
        None => grouped(&copies::contiguous(call.engine, &tensor, call.compile)?)
            .ok_or_else(|| call.invalid("axes do not merge".to_string())),
    }
}
