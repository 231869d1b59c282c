//! Attention and its gradient.

use nx_vulkan_engine::kernels::attention::{
    AttentionSpec, AttentionTile, GradientSpec, MergeSpec, QuerySpec, QueryTile, Read, ScoreSpec,
};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::Binary;
use nx_vulkan_ir::program::attention_gradient::By;
use nx_vulkan_ir::program::step::Ref;
use smallvec::smallvec;

use super::{Kernels, binary};

#[test]
fn attention() {
    let mut kernels = Kernels::of("attention");
    // Scaled, and masked by numbers of each batch's keys.
    let scores = ScoreSpec {
        reads: smallvec![Read { dtype: DType::F16, along: [true, false, true] }],
        steps: smallvec![
            binary(Binary::Multiply, Ref::Input(0), Ref::Constant(DType::F32, 0x3e00_0000), DType::F32),
            binary(Binary::Add, Ref::Result(0), Ref::Input(1), DType::F32),
        ],
        score: Ref::Result(1),
        dtype: DType::F16,
        coordinates: [2, 3],
        kept: None,
    };
    let spec = AttentionSpec {
        dtype: DType::F16,
        tile: AttentionTile::of(64, 64).unwrap(),
        batch_rank: 2,
        scores: scores.clone(),
        whole_keys: true,
        whole_depth: true,
        whole_width: true,
        causal: false,
        factor: None,
        shares_keys: false,
        wide: true,
    };
    kernels.add("masked_f16", |l, m| spec.generate(l, m));
    let gradient = GradientSpec {
        by: By::Key,
        dtype: DType::F16,
        tile: AttentionTile::of(64, 64).unwrap(),
        batch_rank: 2,
        scores: scores.clone(),
        whole_others: true,
        whole_depth: true,
        whole_width: true,
        causal: false,
        factor: None,
        scale: 0x3e00_0000,
        wide: true,
    };
    kernels.add("masked_gradient_f16", |l, m| gradient.generate(l, m));
    // One query of each head, in groups of four, and a share of the keys.
    let few = QuerySpec {
        dtype: DType::F16,
        tile: QueryTile::of(4),
        ranks: [1, 1],
        has_rows: false,
        scores,
        units: [8, 8],
        by_units: [true; 3],
        splits: true,
        wide: true,
    };
    kernels.add("few_queries_f16", |l, m| few.generate(l, m));
    let merge = MergeSpec { dtype: DType::F16, ranks: [1, 1], has_rows: false, team: 64, wide: true };
    kernels.add("merge_f16", |l, m| merge.generate(l, m));
    kernels.compare();
}
