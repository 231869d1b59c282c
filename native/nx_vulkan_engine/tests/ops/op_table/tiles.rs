//! Matrix products by every tile there is, not only by those that the model chooses on this device.

use nx_vulkan_engine::kernels::dot::{
    Choice, Epilogue, LANES, Matrix, MergedAxes, Product, Tile, Tiling, VectorTile, lane_tiles, pair_as, product_as,
};
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::step::{Ref, Step};
use nx_vulkan_engine::program::{Binary, Elementwise, Op};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{CType, Compile, DType, Tensor, Type, Value, View};
use smallvec::smallvec;

use super::values::{Range, operand};
use super::{download, engine, finish, rng, upload};
use crate::common::Rng;
use crate::compare::{Bound, epsilon, mismatch};

/// One product of operands that lie as `[batch, free, depth]`, or `[batch, depth, free]` where they are turned.
#[derive(Debug, Clone, Copy)]
struct Case {
    dtypes: [DType; 3],
    sum: CType,
    batches: u64,
    rows: u64,
    columns: u64,
    depth: u64,
    turned: [bool; 2],
    /// Rows of the result lie this many elements further apart than they are long.
    gap: u64,
    specials: bool,
}

impl Case {
    fn matrix(&self, k: usize, a: &Array) -> Matrix {
        let free = if k == 0 { self.rows } else { self.columns };
        let (free_step, depth_step) = if self.turned[k] { (1, free) } else { (self.depth, 1) };
        Matrix {
            tensor: upload(a),
            batch: MergedAxes::new(&[self.batches], &[(free * self.depth) as i64]),
            free: MergedAxes::new(&[free], &[free_step as i64]),
            depth: MergedAxes::new(&[self.depth], &[depth_step as i64]),
        }
    }

    fn operands(&self, rng: &mut Rng) -> [Array; 2] {
        [0, 1].map(|k| {
            let free = if k == 0 { self.rows } else { self.columns };
            let sizes = if self.turned[k] { [self.depth, free] } else { [free, self.depth] };
            let ty = Type::new(self.dtypes[k], &[&[self.batches], &sizes[..]].concat());
            let mut a = operand(&ty, Range::Ordinary, k, rng);
            if self.specials {
                for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    let at = rng.below(a.values.len() as u64) as usize;
                    a.values[at] = Value::Float(special).cast(ty.dtype);
                }
            }
            a
        })
    }

    fn out(&self) -> Tensor {
        let shape = [self.batches, self.rows, self.columns];
        let line = self.columns + self.gap;
        let memory = Type::new(self.dtypes[2], &[self.batches, self.rows, line]);
        let memory = Tensor::uninitialized(engine(), &memory).unwrap();
        let view = View { shape: shape.as_slice().into(), ..memory.view().clone() };
        Tensor::new(memory.buffer().clone(), view).unwrap()
    }

    fn run(&self, operands: &[Array; 2], choice: Choice) -> Array {
        let out = self.out();
        let p = Product {
            a: self.matrix(0, &operands[0]),
            b: self.matrix(1, &operands[1]),
            out: &out,
            prologues: [None, None],
            epilogue: None,
        };
        product_as(engine(), &p, self.sum, choice, Compile::Allowed).unwrap();
        download(&out)
    }

    fn check(&self, choice: Choice, rng: &mut Rng) {
        let operands = self.operands(rng);
        let axes = |axis: usize| Axes::from_slice(&[axis]);
        let depth = self.turned.map(|turned| axes(if turned { 1 } else { 2 }));
        let [contract_a, contract_b] = depth;
        let op = Op::Dot { contract_a, batch_a: axes(0), contract_b, batch_b: axes(0) };
        let ty = Type::new(self.dtypes[2], &[self.batches, self.rows, self.columns]);
        let want = reference::evaluate(&op, &operands, &ty).unwrap();
        let narrow = if ty.dtype.is_canonical() { 0.0 } else { 2.0 * epsilon(ty.dtype) };
        let bound = Bound::Norm {
            relative: 2.0 * epsilon(ty.dtype) + narrow,
            absolute: (self.depth * self.depth) as f64 * 13.0 * epsilon(self.sum.dtype()),
        };
        let got = self.run(&operands, choice);
        let wrong = mismatch(&got, &[want], bound);
        assert!(wrong.is_none(), "{self:?} by {choice:?}: {wrong:?}");
        let again = self.run(&operands, choice);
        assert!(mismatch(&again, &[got], Bound::Exact).is_none(), "{self:?} by {choice:?} differs from itself");
    }
}

/// Sizes that fill a tile of rows and columns, and steps, by less than once and by more, some of them multiples of
/// four.
fn sizes([rows, columns, block]: [u64; 3], fourfold: bool, rng: &mut Rng) -> [u64; 3] {
    let around = |side: u64, rng: &mut Rng| {
        let size = side * rng.below(2) + 1 + rng.below(side);
        if fourfold { size.next_multiple_of(4) } else { size }
    };
    [around(rows, rng), around(columns, rng), around(2 * block, rng)]
}

fn all_tiles(sum: CType, test: u64) {
    let mut rng = rng(test);
    let own = sum.dtype();
    for (i, &tile) in Tile::all(sum).iter().enumerate() {
        for round in 0..2 {
            let fourfold = round == 0;
            let [rows, columns, depth] =
                sizes([tile.rows.into(), tile.columns.into(), tile.block()], fourfold, &mut rng);
            let dtypes = match (i + round) % 4 {
                1 if sum == CType::F32 => [DType::F16, DType::F16, DType::F16],
                2 if sum == CType::F32 => [DType::Bf16, own, own],
                3 if sum == CType::F64 => [DType::F32, own, own],
                _ => [own; 3],
            };
            let case = Case {
                dtypes,
                sum,
                batches: 1 + rng.below(2),
                rows,
                columns,
                depth,
                turned: [rng.below(2) == 0, rng.below(2) == 0],
                gap: rng.below(2) * if fourfold { 4 } else { 3 },
                specials: i % 3 == 2,
            };
            case.check(Choice { tiling: Tiling::Tiled(tile), splits: 1 + (i as u64 + round as u64) % 3 }, &mut rng);
        }
    }
    finish();
}

#[test]
fn products_by_all_f32_tiles() {
    all_tiles(CType::F32, 90);
}

#[test]
fn products_by_all_f64_tiles() {
    all_tiles(CType::F64, 91);
}

/// A product by vectors for a tile, in the types, sizes and layout of a number.
fn by_vectors(tile: VectorTile, vectors: u64, first: bool, layout: usize, rng: &mut Rng) -> Case {
    let dtypes = [[DType::F32; 3], [DType::F16; 3], [DType::Bf16; 3], [DType::Bf16, DType::F32, DType::F32]];
    let sides = [tile.rows().into(), tile.rows().into(), tile.block()];
    let [rows, _, depth] = sizes(sides, !layout.is_multiple_of(3), rng);
    Case {
        dtypes: dtypes[layout % 4],
        sum: CType::F32,
        batches: 1 + rng.below(2),
        rows: if first { vectors } else { rows },
        columns: if first { rows } else { vectors },
        depth,
        turned: [(layout / 2).is_multiple_of(2), rng.below(2) == 0],
        gap: rng.below(2) * 3,
        specials: layout % 4 == 3,
    }
}

/// A matrix by every number of vectors, which are the columns or the rows of the product, in each layout.
#[test]
fn products_by_vectors() {
    let mut rng = rng(96);
    for vectors in 1..=VectorTile::MOST {
        for first in [false, true] {
            for (round, tile) in VectorTile::all(vectors, first).filter(|tile| tile.fits(engine().caps())).enumerate() {
                let layout = vectors as usize + round;
                let case = by_vectors(tile, vectors, first, layout, &mut rng);
                case.check(Choice { tiling: Tiling::Vectors(tile), splits: 1 + layout as u64 % 3 }, &mut rng);
            }
        }
    }
    finish();
}

/// Contracted elements that lie along two axes, as those of an image's windows do, have the bits of those along one:
/// groups of four end within eights, groups of eight do not.
#[test]
fn products_by_vectors_of_windows() {
    let mut rng = rng(133);
    for (vectors, inner) in [(1, 12), (2, 36), (3, 16), (4, 4), (8, 20)] {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            for tile in VectorTile::all(vectors, false).filter(|tile| tile.fits(engine().caps())) {
                let (rows, lines, length) = (40, 5, 64 * inner);
                let depth = lines * inner;
                let image = operand(&Type::new(dtype, &[lines, length]), Range::Ordinary, 0, &mut rng);
                let at = |row: u64, k: u64| (k / inner * length + row * 4 + k % inner) as usize;
                let places = (0..rows).flat_map(|row| (0..depth).map(move |k| (row, k)));
                let windows = places.map(|(row, k)| image.values[at(row, k)]).collect();
                let windows = Array { ty: Type::new(dtype, &[rows, depth]), values: windows };
                let x = upload(&operand(&Type::new(dtype, &[vectors, depth]), Range::Ordinary, 1, &mut rng));
                let one = |size: u64, stride: u64| MergedAxes::new(&[size], &[stride as i64]);
                let alone = MergedAxes::new(&[], &[]);
                let [image, windows] = [&image, &windows].map(upload);
                let along = MergedAxes::new(&[lines, inner], &[length as i64, 1]);
                let matrices = [(image, one(rows, 4), along), (windows, one(rows, depth), one(depth, 1))];
                let [got, want] = matrices.map(|(tensor, free, axes)| {
                    let out = Tensor::uninitialized(engine(), &Type::new(dtype, &[rows, vectors])).unwrap();
                    let a = Matrix { tensor, batch: alone.clone(), free, depth: axes };
                    let free = one(vectors, depth);
                    let b = Matrix { tensor: x.clone(), batch: alone.clone(), free, depth: one(depth, 1) };
                    let p = Product { a, b, out: &out, prologues: [None, None], epilogue: None };
                    let choice = Choice { tiling: Tiling::Vectors(tile), splits: 1 };
                    product_as(engine(), &p, CType::F32, choice, Compile::Allowed).unwrap();
                    download(&out)
                });
                let wrong = mismatch(&got, &[want], Bound::Exact);
                assert!(wrong.is_none(), "{vectors} by windows of {inner} {dtype}, {tile:?}: {wrong:?}");
            }
        }
    }
    finish();
}

/// No bits depend on how operands lie, nor on which of them is the matrix.
#[test]
fn products_by_vectors_have_the_same_bits() {
    let mut rng = rng(97);
    for (vectors, rows, depth) in [(1, 45, 333), (3, 64, 516), (8, 40, 1000)] {
        for (teams, tile) in VectorTile::all(vectors, false).filter(|tile| tile.fits(engine().caps())).enumerate() {
            let case = Case {
                dtypes: [DType::F32; 3],
                sum: CType::F32,
                batches: 1,
                rows,
                columns: vectors,
                depth,
                turned: [false; 2],
                gap: 0,
                specials: false,
            };
            let [a, b] = case.operands(&mut rng);
            let want = case.run(&[a.clone(), b.clone()], Choice { tiling: Tiling::Vectors(tile), splits: 1 });
            let mirrored = VectorTile::all(vectors, true).nth(teams).unwrap();
            for (turned, first) in
                [([true, false], false), ([true, true], false), ([false; 2], true), ([true; 2], true)]
            {
                let sides = if first { [vectors, rows] } else { [rows, vectors] };
                let other = Case { rows: sides[0], columns: sides[1], turned, ..case };
                let operands = if first { [&b, &a] } else { [&a, &b] };
                let operands = [0, 1].map(|k| if turned[k] { transposed(operands[k]) } else { operands[k].clone() });
                let tile = if first { mirrored } else { tile };
                let got = other.run(&operands, Choice { tiling: Tiling::Vectors(tile), splits: 1 });
                let got = if first { transposed(&got) } else { got };
                assert!(mismatch(&got, std::slice::from_ref(&want), Bound::Exact).is_none(), "{other:?} by {tile:?}");
            }
        }
    }
    finish();
}

/// Two matrices by few vectors in one kernel: each product as it is alone, and steps on both.
#[test]
fn pairs_of_products_by_vectors_have_the_bits_of_each() {
    let mut rng = rng(98);
    for vectors in 1..=VectorTile::MOST_OF_PAIR {
        for first in [false, true] {
            let tiles = VectorTile::all(vectors, first).filter_map(|tile| Some((tile, tile.of_pair()?)));
            for (round, (alone, tile)) in tiles.filter(|(_, tile)| tile.fits(engine().caps())).enumerate() {
                let layout = vectors as usize + round;
                let case = by_vectors(tile, vectors, first, layout, &mut rng);
                let operands = case.operands(&mut rng);
                let place = usize::from(first);
                let mut others = operands.clone();
                others[place] = case.operands(&mut rng)[place].clone();
                let wanted = [&operands, &others]
                    .map(|operands| case.run(operands, Choice { tiling: Tiling::Vectors(alone), splits: 1 }));
                let out = case.out();
                let product = case.dtypes[2];
                let difference = Step {
                    op: Elementwise::Binary(Binary::Subtract),
                    args: smallvec![Ref::Input(1), Ref::Input(0)],
                    out: product,
                };
                let results = [(vec![], Ref::Input(0)), (vec![], Ref::Input(1)), (vec![difference], Ref::Result(0))];
                for (k, (steps, result)) in results.iter().enumerate() {
                    let epilogue = Some(Epilogue { dtype: product, inputs: &[], steps, result: *result });
                    let [a, b] = [0, 1].map(|k| case.matrix(k, &operands[k]));
                    let p = Product { a, b, out: &out, prologues: [None, None], epilogue };
                    let beside = case.matrix(place, &others[place]);
                    assert!(pair_as(engine(), &p, &beside, place, tile, Compile::Allowed).unwrap());
                    let got = download(&out);
                    let want = match wanted.get(k) {
                        Some(want) => want.clone(),
                        None => {
                            let op = Op::Binary(Binary::Subtract);
                            reference::evaluate(&op, &[wanted[1].clone(), wanted[0].clone()], &got.ty).unwrap()
                        }
                    };
                    let wrong = mismatch(&got, &[want], Bound::Exact);
                    assert!(wrong.is_none(), "result {k} of {case:?} by {tile:?}: {wrong:?}");
                }
            }
        }
    }
    finish();
}

/// A batch of one matrix with its rows as columns.
fn transposed(a: &Array) -> Array {
    let &[_, rows, columns] = &a.ty.shape[..] else { panic!("{:?} is no matrix", a.ty) };
    let at = |at: u64| (at % rows * columns + at / rows) as usize;
    let values = (0..rows * columns).map(|k| a.values[at(k)]).collect();
    Array { ty: Type::new(a.ty.dtype, &[1, columns, rows]), values }
}

/// Every type of sums by every tile for lanes; no bits depend on the tile, nor on which operand has the rows.
#[test]
fn products_by_lanes() {
    let mut rng = rng(92);
    let sums = [
        (CType::F32, vec![[DType::F32; 3], [DType::F16; 3], [DType::Bf16, DType::F32, DType::F32]]),
        (CType::F64, vec![[DType::F64; 3], [DType::F32; 3], [DType::F32, DType::S32, DType::F64]]),
        (CType::I32, vec![[DType::S32; 3], [DType::S8; 3]]),
        (CType::U32, vec![[DType::U32; 3], [DType::U8; 3]]),
        (CType::I64, vec![[DType::S64; 3]]),
        (CType::U64, vec![[DType::U64; 3]]),
        (CType::C64, vec![[DType::C64; 3], [DType::F32, DType::C64, DType::C64]]),
        (CType::C128, vec![[DType::C128; 3]]),
    ];
    for (sum, dtypes) in sums {
        for &tile in lane_tiles(engine().model(), sum) {
            let around = [tile.rows.into(), tile.columns().into(), LANES.into()];
            for (round, &dtypes) in dtypes.iter().cycle().take(4).enumerate() {
                let [rows, columns, depth] = sizes(around, round == 0, &mut rng);
                let case = Case {
                    dtypes,
                    sum,
                    batches: 1 + rng.below(2),
                    rows,
                    columns,
                    depth,
                    turned: [round % 2 == 0, rng.below(2) == 0],
                    gap: rng.below(2) * 3,
                    specials: round == 2 && dtypes.iter().all(|dtype| dtype.is_float()),
                };
                case.check(Choice { tiling: Tiling::Lanes(tile), splits: 1 + round as u64 % 3 }, &mut rng);
            }
        }
    }
    finish();
}

/// Operands whose neighbours lie along either axis, at even places.
#[test]
fn products_by_lanes_that_take_pairs() {
    let mut rng = rng(95);
    for &tile in lane_tiles(engine().model(), CType::F32).iter().filter(|tile| tile.takes_pairs(CType::F32)) {
        for round in 0..8 {
            let [rows, columns, depth] = sizes([tile.rows.into(), tile.columns().into(), LANES.into()], true, &mut rng);
            let case = Case {
                dtypes: [DType::F32; 3],
                sum: CType::F32,
                batches: 1 + rng.below(2),
                rows,
                columns,
                depth,
                turned: [round % 2 == 0, round / 2 % 2 == 0],
                gap: [0, 4, 3][round % 3],
                specials: round % 4 == 3,
            };
            case.check(Choice { tiling: Tiling::Lanes(tile), splits: 1 + round as u64 % 3 }, &mut rng);
        }
    }
    finish();
}

/// No bits depend on the tile, nor on which operand has the rows.
#[test]
fn tiles_for_lanes_have_the_same_bits() {
    same_bits([45, 37, 61]);
}

/// The same where neighbours are taken by pairs.
#[test]
fn tiles_for_lanes_that_take_pairs_have_the_same_bits() {
    same_bits([44, 36, 60]);
}

fn same_bits([rows, columns, depth]: [u64; 3]) {
    let mut rng = rng(93);
    let case = Case {
        dtypes: [DType::F32; 3],
        sum: CType::F32,
        batches: 1,
        rows,
        columns,
        depth,
        turned: [false; 2],
        gap: 0,
        specials: false,
    };
    let [a, b] = case.operands(&mut rng);
    let exchanged = Case { rows: case.columns, columns: case.rows, ..case };
    let mut all: Vec<Array> = vec![];
    for &tile in lane_tiles(engine().model(), CType::F32) {
        let choice = Choice { tiling: Tiling::Lanes(tile), splits: 1 };
        let got = case.run(&[a.clone(), b.clone()], choice);
        let mut turned = got.clone();
        let mirrored = exchanged.run(&[b.clone(), a.clone()], choice);
        for row in 0..case.rows as usize {
            for column in 0..case.columns as usize {
                let at = row * case.columns as usize + column;
                turned.values[at] = mirrored.values[column * case.rows as usize + row];
            }
        }
        all.extend([got, turned]);
    }
    for other in all.iter().skip(1) {
        assert!(mismatch(other, &all[..1], Bound::Exact).is_none());
    }
    finish();
}

/// Lanes past the end of the contracted elements repeat the last ones, which must be part of no sum twice.
#[test]
fn infinities_at_the_end_are_added_once() {
    let mut rng = rng(94);
    for (depth, columns) in [(1, 19), (5, 19), (8, 19), (13, 19), (4, 20), (12, 20), (20, 20)] {
        let case = Case {
            dtypes: [DType::F32; 3],
            sum: CType::F32,
            batches: 1,
            rows: 8,
            columns,
            depth,
            turned: [false; 2],
            gap: 0,
            specials: false,
        };
        let mut operands = case.operands(&mut rng);
        for operand in &mut operands {
            let last = operand.values.iter_mut().skip(depth as usize - 1).step_by(depth as usize);
            last.enumerate().for_each(|(k, value)| {
                *value = Value::Float(if k == 3 { f64::INFINITY } else { 1.0 });
            });
        }
        for &tile in lane_tiles(engine().model(), CType::F32) {
            let got = case.run(&operands, Choice { tiling: Tiling::Lanes(tile), splits: 1 });
            for (at, value) in got.values.iter().enumerate() {
                let Value::Float(value) = *value else { panic!("{value:?}") };
                let infinite = at / columns as usize == 3 || at % columns as usize == 3;
                assert!(
                    if infinite { value == f64::INFINITY } else { value.is_finite() },
                    "{value} at {at} of {depth}"
                );
            }
        }
    }
    finish();
}
