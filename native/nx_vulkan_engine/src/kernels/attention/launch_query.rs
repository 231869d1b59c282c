//! Launches of attention of few queries.

use nx_vulkan_ir::shape::{Dims, Space, Strides};
use smallvec::SmallVec;

use super::AttentionKernel;
use super::launch::{Attention, RowBatches, has_wide_push, reads, scores};
use super::query::{MergeSpec, PART_NUMBERS, QuerySpec, QueryTile, UNIT_BYTES};
use crate::kernels::{Arguments, Compile, Place, launch};
use crate::{DType, Engine, Result, tuning};

/// Keys that workgroups read at once, about: shares are multiples of it.
const STEP: u64 = 32;

/// Keys of a share on a device of so many processors, where so many workgroups have all of them each.
fn keys_of_share(tuned: &tuning::Attention, processors: u64, tile: QueryTile, groups: u64, keys: u64) -> u64 {
    let shares = if keys > tuned.most_whole_keys { tuned.groups * processors / groups.max(1) } else { 1 };
    keys.div_ceil(shares.max(1)).next_multiple_of(STEP).min(tile.most_keys())
}

/// Launches attention of few queries: of one share of the keys for each workgroup, and of what they give.
pub(super) fn few_queries(engine: &Engine, a: &Attention<'_>, compile: Compile) -> Result<bool> {
    let dtype = a.out.view.dtype;
    let (depth, width, rows, keys) = (a.of.depth, a.of.width, a.of.rows(), a.of.keys());
    let rank = a.batches.len();
    let [q, k, v] = a.factors;
    let Some(lying) = a.lying() else { return Ok(false) };
    // Heads along which keys and values are the same are more queries.
    let (shared, apart): (Vec<usize>, Vec<usize>) =
        (0..rank).partition(|&axis| lying[1].batch[axis] == 0 && lying[2].batch[axis] == 0);
    let space = |axes: &[usize]| {
        let sizes: Dims = axes.iter().map(|&axis| a.batches[axis]).collect();
        let strides: Vec<Strides> = lying.iter().map(|l| axes.iter().map(|&axis| l.batch[axis]).collect()).collect();
        let strides: Vec<&[i64]> = strides.iter().map(|strides| &strides[..]).collect();
        Space::new(&sizes, &strides)
    };
    let (batches, heads) = (space(&apart), space(&shared));
    let ranks = [batches.sizes.len() as u8, heads.sizes.len() as u8];
    let (count, queries) = (batches.elements(), heads.elements() * rows);
    let sizes: Dims = batches.sizes.iter().chain(&heads.sizes).copied().chain([rows, keys, depth, width]).collect();
    let strides: SmallVec<[Strides; 8]> = (batches.strides.iter().zip(&heads.strides).zip(&lying))
        .map(|((batch, head), lying)| batch.iter().chain(head).chain(&lying.own).copied().collect())
        .collect();

    let tile = QueryTile::of(queries);
    let groups = count * queries.div_ceil(tile.count.into());
    let model = engine.model();
    let length = keys_of_share(&model.attention, model.processors, tile, groups, keys);
    let shares = keys.div_ceil(length);
    let part_elements = count * queries * shares * (width + PART_NUMBERS);
    if part_elements > engine.reach().near(DType::F32.size_bytes()) {
        return Ok(false);
    }
    let unit = UNIT_BYTES / dtype.size_bytes();
    let has_units = |f: &RowBatches, elements: u64| elements.is_multiple_of(unit) && f.is_aligned();
    let (has_rows, splits, wide) = (rows > 1, shares > 1, has_wide_push(engine));
    let spec = QuerySpec {
        dtype,
        tile,
        ranks,
        has_rows,
        scores: scores(a.of, reads(a.inputs, &strides, usize::from(ranks[0] + ranks[1]))),
        units: [depth, width].map(|elements| elements.div_ceil(unit) as u32),
        by_units: [has_units(q, depth), has_units(k, depth), has_units(v, width)],
        splits,
        wide,
    };
    let kernel = |kernel: AttentionKernel| engine.kernel(&kernel, compile);
    let first = kernel(AttentionKernel::Query(spec))?;
    // Both kernels must exist before anything is recorded.
    let merge = match splits {
        true => {
            let team = width.next_power_of_two() as u32;
            let last = kernel(AttentionKernel::Merge(MergeSpec { dtype, ranks, has_rows, team, wide }))?;
            Some((last, engine.alloc(part_elements * DType::F32.size_bytes())?))
        }
        false => None,
    };
    let steps = [k, v].map(|f| f.rows.unsigned_abs());
    let extra: SmallVec<[u32; 9]> = [count, queries, keys, depth, width]
        .into_iter()
        .chain(steps)
        .chain([length, shares])
        .map(|number| number as u32)
        .collect();
    let mut places = a.places(&strides);
    let elements = a.out.view.elements() as u32;
    let Some((last, scratch)) = &merge else {
        let arguments = Arguments { count: elements, sizes: &sizes, places: &places, extra: &extra };
        launch(engine, &first, &arguments, places.len() - 1, groups)?;
        return Ok(true);
    };
    let part = Place { buffer: scratch, address: scratch.address(), strides: &[], element_bytes: 0 };
    let Some(result) = places.last_mut().map(|place| std::mem::replace(place, part)) else { return Ok(false) };
    let arguments = Arguments { count: elements, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &first, &arguments, places.len() - 1, groups * shares)?;
    let extra = [count, queries, width, shares].map(|number| number as u32);
    let arguments = Arguments { count: elements, sizes: &sizes, places: &[part, result], extra: &extra };
    launch(engine, last, &arguments, 1, count * queries)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fill_a_device_and_fit_in_workgroups() {
        let tuned = tuning::Attention { groups: 2, least_rows: 16, least_keys: 32, most_whole_keys: 128 };
        let shares = |processors, queries, groups, keys: u64| {
            let length = keys_of_share(&tuned, processors, QueryTile::of(queries), groups, keys);
            assert!(length.is_multiple_of(STEP) && length <= QueryTile::of(queries).most_keys());
            keys.div_ceil(length)
        };
        // A block of a model with 8 heads of keys and 32 of queries, on a large GPU, a small one, and a CPU.
        assert_eq!([132, 16, 2].map(|processors| shares(processors, 4, 8, 576)), [18, 4, 2]);
        assert_eq!(shares(132, 4, 8, 4096), 32);
        // Few keys, and more heads than processors, are not shared out, unless a workgroup has no room.
        assert_eq!([shares(132, 1, 1, 128), shares(132, 1, 1, 129)], [1, 5]);
        assert_eq!([shares(132, 1, 768, 1500), shares(132, 1, 768, 3000)], [1, 2]);
        assert_eq!(shares(132, 8, 768, 1500), 8);
    }
}
