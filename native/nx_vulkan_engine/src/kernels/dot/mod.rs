//! Matrix products: tiles of f32 and f64, lanes of a subgroup, few vectors, matrix units, and the split of numbers for
//! those.

mod border;
mod choice;
mod derived;
mod few;
mod fragments;
mod generate;
mod generate_linear;
mod generate_matrix;
mod generate_residues;
mod generate_vectors;
mod image;
mod launch;
mod launch_border;
mod launch_derived;
mod linear;
mod loads;
mod matrix;
mod own;
mod residues;

use nx_vulkan_ir::program::step::{has_costly, stands_in_loop};
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::family::{Constants, KernelSpec, flops_of, name_of_ops, names_of_steps};
use super::{Arguments, Place};
use crate::program::ops::multiplied;
use crate::{DType, Result};

pub use border::{Border, BorderAxis, BorderSpec, MAX_PLACES, MAX_POSITIONS, WindowAxis};
#[cfg(feature = "testing")]
pub use choice::linear_choice;
#[cfg(test)]
pub(crate) use choice::{accurate_splits, launch_of, shares_results};
pub use choice::{
    candidates, choose, estimate, lane_tiles, matrix_candidates, plain, residue_candidates, vector_candidates,
};
pub(crate) use choice::{in_place, pays_in_place};
pub use derived::{DerivedSpec, Span, Spread};
pub use generate::{Access, DotSpec, EpilogueSpec, LANES, LaneTile, Load, Store, Tile, Tiling};
pub use generate_matrix::{Bounds, Feed, MatrixTile, Planes, SplitSpec, SplitStage};
pub use generate_residues::{ResidueSpec, ResidueStage, ResidueTile};
pub use generate_vectors::VectorTile;
pub use image::{Image, ImageAxis};
pub use launch::{
    Choice, Epilogue, Matrix, MergedAxes, Outline, Product, pair_as, product, product_as, product_of_image,
    product_pair,
};
pub use launch_border::product_with_border;
pub use launch_derived::{Derived, derived_as, product_of_derived};
pub use linear::{LinearSpec, Numbers};
pub use matrix::{InPlace, Narrowing, Prepared, prepare};
pub use residues::Residues;

/// Constants that are 0 or 1, by their place.
fn numbered(values: &[bool]) -> Constants {
    (0..).zip(values).map(|(id, &value)| (id, u32::from(value))).collect()
}

/// How many numbers of bf16 make up those of a type of which f32 holds all: three hold its 24 bits.
fn parts_of(dtype: DType) -> u32 {
    match dtype {
        _ if dtype.is_within(DType::Bf16) => 1,
        DType::F16 => 2,
        _ => 3,
    }
}

impl KernelSpec for DotSpec {
    fn name(&self) -> String {
        let prologues = self.prologues.iter().flatten().flat_map(|prologue| names_of_steps(&prologue.steps));
        let derived = self.derived.iter().flat_map(|derived| names_of_steps(&derived.steps));
        let epilogue = self.epilogue.iter().flat_map(|epilogue| names_of_steps(&epilogue.steps));
        let tiling = match self.tiling {
            Tiling::Square => "square".to_string(),
            Tiling::Narrow => "narrow".to_string(),
            Tiling::Tiled(tile) => format!("{}x{}", tile.rows, tile.columns),
            Tiling::Lanes(tile) => format!("lanes_{}x{}", tile.rows, tile.columns()),
            Tiling::Vectors(tile) if tile.pair => format!("vectors_{}_pair", tile.count),
            Tiling::Vectors(tile) => format!("vectors_{}", tile.count),
            Tiling::Matrix(tile) if self.border.is_some() => format!("matrix_{}x{}_bordered", tile.rows, tile.columns),
            Tiling::Matrix(tile) if tile.feed == Feed::Fragments => format!("fragments_{}x{}", tile.rows, tile.columns),
            Tiling::Matrix(tile) if self.linear.is_some() => format!("linear_{}", tile.vectors()),
            Tiling::Matrix(tile) => format!("matrix_{}x{}", tile.rows, tile.columns),
            Tiling::Residues(tile) => format!("restored_{}", tile.moduli),
        };
        format!("{}.{tiling}.{}", name_of_ops(prologues.chain(derived).chain(["dot"]).chain(epilogue), "dot"), self.out)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        DotSpec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        // On matrix units, the loop itself takes longer than a few copies of cheap steps.
        let is_long = if matches!(self.tiling, Tiling::Matrix(_)) { has_costly } else { stands_in_loop };
        let in_loop = self.epilogue.as_ref().is_some_and(|e| is_long(&e.steps));
        // The vectors are the second operand of the template, on whichever side they stand.
        let vectors_first = match self.tiling {
            Tiling::Vectors(tile) => tile.first,
            Tiling::Matrix(tile) => tile.is_vectors_first(),
            Tiling::Square | Tiling::Narrow | Tiling::Tiled(_) | Tiling::Lanes(_) | Tiling::Residues(_) => false,
        };
        let (a, b) = if vectors_first { (self.b_load, self.a_load) } else { (self.a_load, self.b_load) };
        let (fallback, scaled) = (self.is_fallback(), self.guarded && !self.is_fallback());
        let [a_steps, b_steps] = self.prologues.each_ref().map(Option::is_some);
        let mut constants = numbered(&[
            a.along_k,
            b.along_k,
            a.by_four,
            b.by_four,
            self.store.by_four,
            in_loop,
            fallback,
            scaled,
            self.low_b_first,
            a_steps,
            b_steps,
            self.store.by_eight,
            matches!(self.tiling, Tiling::Matrix(tile) if tile.planes.is_bf16()),
            vectors_first,
        ]);
        if let Tiling::Vectors(_) = self.tiling {
            let eights = self.takes_eights();
            let at_once = self.derived.as_ref().map_or(0, |derived| derived.together());
            constants.extend([(17, eights.into()), (18, (eights && !self.ends_early).into()), (19, at_once)]);
        }
        if let Some(border) = &self.border {
            constants.extend([(17, u32::from(!border.second)), (18, u32::from(border.second))]);
        }
        if let Tiling::Matrix(tile) = self.tiling {
            match tile.planes {
                _ if tile.feed == Feed::Fragments => {}
                _ if let Some(linear) = &self.linear => {
                    let has_offset = linear.offset.is_some() || linear.kind.is_moved();
                    let as_floats = linear.kind == Numbers::Floats;
                    let of_fours = linear.kind == Numbers::Bytes;
                    constants.extend([(16, self.ends_early.into()), (17, tile.vectors()), (20, has_offset.into())]);
                    constants.extend([(21, as_floats.into()), (22, of_fours.into())]);
                }
                _ if tile.feed == Feed::Few => {
                    constants.extend([(16, u32::from(self.ends_early)), (17, tile.vectors())]);
                }
                Planes::ThreeBf16 => constants.extend([(14, parts_of(self.a)), (15, parts_of(self.b))]),
                Planes::OwnF16 | Planes::OwnBf16 | Planes::OwnThreeBf16 => {
                    let [a, b] = self.by_axes().map(u32::from);
                    constants.extend([(14, a), (15, b), (16, u32::from(self.ends_early))]);
                }
                Planes::OneF16 | Planes::TwoF16 => {}
            }
        }
        constants
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        let number = |k| arguments.number(k);
        let epilogue = self.epilogue.as_ref().map_or(0, |epilogue| flops_of(&epilogue.steps));
        if let Tiling::Residues(tile) = self.tiling {
            return multiplied(&[number(0)?, number(1)?, number(2)?, tile.flops() + epilogue]);
        }
        let [rows, columns, depth, batches] = [number(0)?, number(1)?, number(2)?, number(3)?];
        let results = multiplied(&[rows, columns, batches])?;
        let [mut a, mut b] = self.prologues.each_ref().map(|p| p.as_ref().map_or(0, |p| flops_of(&p.steps)));
        let derived = self.derived.as_ref().map_or(0, |derived| flops_of(&derived.steps));
        *if self.derived_place() == Some(0) { &mut a } else { &mut b } += derived;
        let of_a = multiplied(&[rows, depth, batches, a])?;
        let of_b = multiplied(&[columns, depth, batches, b])?;
        let products = 1 + u64::from(matches!(self.tiling, Tiling::Vectors(tile) if tile.pair));
        let all = [multiplied(&[2 * products, results, depth])?, multiplied(&[results, epilogue])?, of_a, of_b];
        all.into_iter().try_fold(0u64, u64::checked_add)
    }

    /// Whether it is there for what matrix units can't take.
    fn is_fallback(&self) -> bool {
        self.guarded && !matches!(self.tiling, Tiling::Matrix(_) | Tiling::Residues(_))
    }

    fn element_bytes(&self, k: usize, place: &Place<'_>) -> u64 {
        match k {
            _ if matches!(self.tiling, Tiling::Residues(_)) => place.element_bytes,
            // The other one stands for a matrix that lies nowhere.
            0 | 1 if self.derived.is_some() => place.element_bytes,
            0 => self.a.size_bytes(),
            1 => self.b.size_bytes(),
            _ => place.element_bytes,
        }
    }
}

impl KernelSpec for SplitSpec {
    fn name(&self) -> String {
        match self.stage {
            SplitStage::Largest => format!("split.largest.{}", self.dtype),
            SplitStage::Split if self.planes == Planes::OwnThreeBf16 => format!("split.planes.{}", self.dtype),
            SplitStage::Split => format!("split.{}.{}", self.planes.count(), self.dtype),
            SplitStage::Copy => format!("split.copy.{}", self.dtype),
            SplitStage::Restore => format!("split.restore.{}", self.dtype),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        SplitSpec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        let is_own = self.planes.is_own() && self.bounds.is_none();
        let restores = self.stage == SplitStage::Restore;
        let to_bf16 = is_own && self.planes.is_bf16();
        let Load { along_k, by_four } = self.load;
        numbered(&[along_k, by_four, self.scaled, self.second, is_own, to_bf16, restores, self.fragments])
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }

    /// Whether it is there for what matrix units can't take.
    fn is_fallback(&self) -> bool {
        self.stage == SplitStage::Restore
    }

    fn element_bytes(&self, k: usize, place: &Place<'_>) -> u64 {
        if k == 0 { self.dtype.size_bytes() } else { place.element_bytes }
    }
}
