//! Whether invocations hold matrices as `dot_own.comp` and `dot_residues.comp` count on, which Vulkan leaves to devices:
//! a product tells.

use half::{bf16, f16};
use once_cell::sync::OnceCell;

use super::launch::{Choice, Matrix, MergedAxes, Product, product_as};
use super::residues::Residues;
use super::{MatrixTile, Planes, ResidueTile, Tiling};
use crate::kernels::Compile;
use crate::{CType, DType, Engine, Error, Result, Tensor, Type};

/// What was found for f16, for bf16 and for bytes.
#[derive(Debug, Default)]
struct OwnNumbers([OnceCell<bool>; 3]);

/// Rows, columns and contracted elements of the product that is tried.
const SIDE: u64 = 64;

/// A tensor of one square as the operand of a product.
fn square(tensor: Tensor) -> Matrix {
    Matrix {
        tensor,
        batch: MergedAxes::new(&[1], &[0]),
        free: MergedAxes::new(&[SIDE], &[SIDE as i64]),
        depth: MergedAxes::new(&[SIDE], &[1]),
    }
}

impl Engine {
    /// Whether matrix units take f16, and bf16, operands of a product as they are, for products of such a type; of f64,
    /// in the place of f16, whether they take bytes. The first question about each runs a small product and waits for it.
    ///
    /// # Errors
    /// `NeedsCompile` where that is refused; what launching may fail with.
    pub fn takes_own_numbers(&self, product: DType, compile: Compile) -> Result<[bool; 2]> {
        if self.capture().is_some() {
            return self.uncaptured().takes_own_numbers(product, compile);
        }
        let caps = self.caps();
        let is_nvidia = self.model().class.is_nvidia();
        let has = |planes: Planes| is_nvidia && caps.cooperative_matrix && (!planes.is_bf16() || caps.bfloat16_matrix);
        if product == DType::F64 {
            if !(is_nvidia && caps.byte_matrix) {
                return Ok([false; 2]);
            }
            let found = &self.state::<OwnNumbers>().0[2];
            if compile == Compile::Refused && found.get().is_none() {
                return Err(Error::NeedsCompile);
            }
            return Ok([*found.get_or_try_init(|| self.multiplies_bytes())?, false]);
        }
        let (place, planes) = match product {
            DType::Bf16 => (1, Planes::OwnBf16),
            _ if product.is_within(DType::F16) => (0, Planes::OwnF16),
            _ => return Ok([false; 2]),
        };
        if !has(planes) {
            return Ok([false; 2]);
        }
        let found = &self.state::<OwnNumbers>().0[place];
        if compile == Compile::Refused && found.get().is_none() {
            return Err(Error::NeedsCompile);
        }
        let is_so = *found.get_or_try_init(|| self.multiplies(planes))?;
        Ok([place == 0 && is_so, place == 1 && is_so])
    }

    /// Whether kernels for bytes give the product of two matrices of doubles that both have more bits than a byte: the
    /// exact one, rounded to the nearest.
    fn multiplies_bytes(&self) -> Result<bool> {
        let Some(form) = Residues::of(SIDE) else { return Ok(false) };
        let ty = Type::new(DType::F64, &[1, SIDE, SIDE]);
        let values = |seed: u64| (1..=SIDE * SIDE).map(move |i| (i.wrapping_mul(seed) as i64) >> 24);
        let upload = |seed: u64| {
            let bytes: Vec<u8> = values(seed).flat_map(|value| (value as f64).to_ne_bytes()).collect();
            Tensor::from_nx_bytes(self, &ty, &bytes)
        };
        let seeds = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
        let [a, b] = [square(upload(seeds[0])?), square(upload(seeds[1])?)];
        let out = Tensor::uninitialized(self, &ty)?;
        let p = Product { a, b, prologues: [None, None], out: &out, epilogue: None };
        let [a, b] = seeds.map(|seed| values(seed).map(i128::from).collect::<Vec<i128>>());
        let side = SIDE as usize;
        let sum = |at: usize| -> i128 { (0..side).map(|k| a[at / side * side + k] * b[at % side * side + k]).sum() };
        for tile in ResidueTile::SIDES.map(|side| ResidueTile { side, moduli: form.moduli }) {
            let choice = Choice { tiling: Tiling::Residues(tile), splits: 1 };
            product_as(self, &p, CType::F64, choice, Compile::Allowed)?;
            let got = out.to_nx_bytes(self, None)?;
            if !got.chunks_exact(8).enumerate().all(|(at, bytes)| bytes == (sum(at) as f64).to_ne_bytes()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether kernels for such numbers give the product of two matrices of whole numbers, rounded to the nearest.
    fn multiplies(&self, planes: Planes) -> Result<bool> {
        let Some(dtype) = planes.own_type() else { return Ok(false) };
        let ty = Type::new(dtype, &[1, SIDE, SIDE]);
        // Sums up to 2^14, which bf16 and f16 often lie half between.
        let values = |seed: u32| (1..=(SIDE * SIDE) as u32).map(move |i| (i.wrapping_mul(seed) >> 16) as i32 % 31 - 13);
        let round = |value: i32| match planes.is_bf16() {
            true => bf16::from_f32(value as f32).to_bits(),
            false => f16::from_f32(value as f32).to_bits(),
        };
        let upload = |seed: u32| {
            let bytes: Vec<u8> = values(seed).flat_map(|value| round(value).to_ne_bytes()).collect();
            Tensor::from_nx_bytes(self, &ty, &bytes)
        };
        let seeds = [0x9e37_79b1, 0x85eb_ca77];
        let [a, b] = [square(upload(seeds[0])?), square(upload(seeds[1])?)];
        let out = Tensor::uninitialized(self, &Type::new(dtype, &[1, SIDE, SIDE]))?;
        let p = Product { a, b, prologues: [None, None], out: &out, epilogue: None };
        let tile = MatrixTile::all(planes).last();
        let Some(tile) = tile else { return Ok(false) };
        product_as(self, &p, CType::F32, Choice { tiling: Tiling::Matrix(tile), splits: 1 }, Compile::Allowed)?;
        let [a, b] = seeds.map(|seed| values(seed).collect::<Vec<i32>>());
        let side = SIDE as usize;
        let sum = |at: usize| -> i32 { (0..side).map(|k| a[at / side * side + k] * b[at % side * side + k]).sum() };
        let got = out.to_nx_bytes(self, None)?;
        Ok(got.chunks_exact(2).enumerate().all(|(at, bytes)| bytes == round(sum(at)).to_ne_bytes()))
    }
}
