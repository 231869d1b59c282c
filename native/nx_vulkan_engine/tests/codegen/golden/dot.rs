//! Products of matrices.

use nx_vulkan_engine::kernels::dot::{
    Access, BorderSpec, DerivedSpec, DotSpec, EpilogueSpec, Feed, LaneTile, Load, MatrixTile, Planes, Span, SplitSpec,
    SplitStage, Spread, Store, Tile, Tiling, VectorTile, WindowAxis,
};
use nx_vulkan_engine::kernels::map::Port;
use nx_vulkan_ir::program::step::{Prologue, Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise};
use nx_vulkan_ir::{CType, DType};
use nx_vulkan_spirv::access::{Element, Layout};
use smallvec::smallvec;

use super::{Kernels, binary};

fn product(dtype: DType, sum: CType, tiling: Tiling) -> DotSpec {
    let load = Load { along_k: true, by_four: false };
    DotSpec {
        a: dtype,
        b: dtype,
        product: dtype,
        out: dtype,
        sum,
        a_ranks: [0, 1, 1],
        b_ranks: [0, 1, 1],
        a_load: load,
        b_load: Load { along_k: false, ..load },
        prologues: [None, None],
        derived: None,
        linear: None,
        store: Store { rank: 0, contiguous: true, by_four: false, by_eight: false },
        tiling,
        guarded: false,
        low_b_first: false,
        ends_early: false,
        border: None,
        by_eights: matches!(tiling, Tiling::Vectors(tile) if tile.count <= 4),
        wide: false,
        epilogue: None,
    }
}

/// Adds a bias of each column, and takes nothing below zero.
fn dense() -> EpilogueSpec {
    EpilogueSpec {
        inputs: smallvec![(DType::F32, Access::Strided)],
        steps: smallvec![
            binary(Binary::Add, Ref::Input(0), Ref::Input(1), DType::F32),
            binary(Binary::Max, Ref::Result(0), Ref::Constant(DType::F32, 0), DType::F32),
        ],
        result: Ref::Result(1),
    }
}

#[test]
fn products() {
    let mut kernels = Kernels::of("dot");
    for (t, sum) in
        [(DType::F32, CType::F32), (DType::S32, CType::I32), (DType::C64, CType::C64), (DType::Bf16, CType::F32)]
    {
        let spec = product(t, sum, Tiling::Square);
        kernels.add(&format!("square_{}", t.name()), |l, m| spec.generate(l, m));
    }
    let narrow = product(DType::F64, CType::F64, Tiling::Narrow);
    kernels.add("narrow_f64", |l, m| narrow.generate(l, m));
    let lanes = product(DType::F32, CType::F32, Tiling::Lanes(LaneTile { rows: 8, vectors: 1 }));
    kernels.add("lanes_f32", |l, m| lanes.generate(l, m));
    let tile = VectorTile::all(2, true).next().unwrap();
    let vectors = product(DType::Bf16, CType::F32, Tiling::Vectors(tile));
    kernels.add("vectors_bf16", |l, m| vectors.generate(l, m));
    let gate = EpilogueSpec {
        inputs: smallvec![],
        steps: smallvec![binary(Binary::Multiply, Ref::Input(0), Ref::Input(1), DType::Bf16)],
        result: Ref::Result(0),
    };
    // Bytes with a scale for neighbours.
    let port = |dtype, layout| Port { element: Element::Typed(dtype), layout };
    let derived = DerivedSpec {
        inputs: smallvec![port(DType::S8, Layout::Each), port(DType::F16, Layout::Each)],
        steps: smallvec![
            Step { op: Elementwise::AsType, args: smallvec![Ref::Input(0)], out: DType::F32 },
            Step { op: Elementwise::AsType, args: smallvec![Ref::Input(1)], out: DType::F32 },
            binary(Binary::Multiply, Ref::Result(0), Ref::Result(1), DType::F32),
            Step { op: Elementwise::AsType, args: smallvec![Ref::Result(2)], out: DType::Bf16 },
        ],
        result: Ref::Result(3),
        axis: 4,
        ranks: [1, 1],
        spans: smallvec![Span { count: 16, is_whole: false }],
        alike: smallvec![0, 1],
        lies: smallvec![smallvec![Spread::Near(16)], smallvec![Spread::Same]],
    };
    let by_four = Load { along_k: true, by_four: true };
    let scaled = DotSpec { b_load: by_four, derived: Some(Box::new(derived)), ..vectors.clone() };
    kernels.add("vectors_bf16_of_scaled_bytes", |l, m| scaled.generate(l, m));
    let tiling = Tiling::Vectors(tile.of_pair().unwrap());
    let pair = DotSpec { epilogue: Some(gate), ..product(DType::Bf16, CType::F32, tiling) };
    kernels.add("vectors_pair_bf16", |l, m| pair.generate(l, m));
    let epilogue = DotSpec {
        store: Store { rank: 2, contiguous: false, by_four: false, by_eight: false },
        epilogue: Some(dense()),
        ..product(DType::F32, CType::F32, Tiling::Square)
    };
    kernels.add("square_f32_dense", |l, m| epilogue.generate(l, m));
    let tile = *Tile::all(CType::F32).iter().min_by_key(|tile| tile.rows * tile.columns).unwrap();
    let tiled = product(DType::F32, CType::F32, Tiling::Tiled(tile));
    kernels.add("tiled_f32", |l, m| tiled.generate(l, m));
    let double = Prologue {
        steps: [binary(Binary::Add, Ref::Input(0), Ref::Input(0), DType::F32)].into(),
        result: Ref::Result(0),
    };
    let with_steps = DotSpec { prologues: [Some(double), None], ..tiled.clone() };
    kernels.add("tiled_f32_of_doubles", |l, m| with_steps.generate(l, m));
    let tile = MatrixTile { rows: 64, columns: 64, planes: Planes::OneF16, feed: Feed::Planes };
    let on_units = DotSpec {
        out: DType::F32,
        product: DType::F32,
        a_ranks: [0; 3],
        b_ranks: [0; 3],
        a_load: Load { along_k: true, by_four: true },
        b_load: Load { along_k: true, by_four: true },
        store: Store { rank: 2, contiguous: true, by_four: true, by_eight: false },
        wide: true,
        ..product(DType::F16, CType::F32, Tiling::Matrix(tile))
    };
    kernels.add("matrix_units", |l, m| on_units.generate(l, m));
    let own = DotSpec {
        out: DType::F16,
        product: DType::F16,
        store: Store { rank: 0, contiguous: true, by_four: true, by_eight: true },
        tiling: Tiling::Matrix(MatrixTile { planes: Planes::OwnF16, ..tile }),
        ..on_units.clone()
    };
    kernels.add("own_numbers", |l, m| own.generate(l, m));
    let axis = WindowAxis { positions: 3, dilation: 1, stride: 1 };
    let axes = smallvec![WindowAxis { dilation: 2, ..axis }, WindowAxis { stride: 2, ..axis }];
    let bordered = DotSpec {
        a_ranks: [0, 3, 3],
        border: Some(BorderSpec { second: false, axes }),
        tiling: Tiling::Matrix(MatrixTile { columns: 128, planes: Planes::OwnF16, ..tile }),
        store: Store { rank: 0, contiguous: true, by_four: true, by_eight: false },
        ..own.clone()
    };
    kernels.add("own_numbers_bordered", |l, m| bordered.generate(l, m));
    let few = DotSpec {
        a_ranks: [0, 1, 1],
        b_ranks: [0, 1, 1],
        store: Store { rank: 0, contiguous: true, by_four: true, by_eight: false },
        tiling: Tiling::Matrix(MatrixTile::of_few(Planes::OwnF16, 16, false).unwrap()),
        ..own.clone()
    };
    kernels.add("own_numbers_by_few", |l, m| few.generate(l, m));
    let fragments = DotSpec {
        tiling: Tiling::Matrix(MatrixTile { rows: 128, planes: Planes::OwnF16, feed: Feed::Fragments, ..tile }),
        ..own.clone()
    };
    kernels.add("own_numbers_by_fragments", |l, m| fragments.generate(l, m));
    for (name, stage) in [("largest", SplitStage::Largest), ("split", SplitStage::Split)] {
        let spec = SplitSpec {
            fragments: false,
            stage,
            dtype: DType::F32,
            ranks: [0, 1, 1],
            load: Load { along_k: true, by_four: false },
            planes: Planes::TwoF16,
            scaled: true,
            bounds: None,
            second: false,
        };
        kernels.add(name, |l, m| spec.generate(l, m));
    }
    kernels.compare();
}
