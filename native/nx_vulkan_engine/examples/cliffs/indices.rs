//! What goes by indices, by where they point.

use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::index::{Gather, IndexedAdd, IndexedPut};
use nx_vulkan_engine::{DType, Tensor, Type};

use crate::data::{Kind, Random, integers};
use crate::{Bench, Outcome};

const KINDS: [&str; 6] =
    ["random", "all equal", "half of them equal", "distinct, sorted", "distinct, reversed", "runs of 64"];

/// So many indices of each kind.
fn indices(bench: &Bench, count: u64, bound: u64) -> Outcome<Vec<Tensor>> {
    let kinds = KINDS.iter().enumerate().map(|(kind, _)| {
        let mut random = Random(7);
        let one = |i: u64| {
            let any = random.below(bound);
            let spread = (i * bound / count) as i32;
            match kind {
                1 => bound as i32 / 2,
                2 if i.is_multiple_of(2) => bound as i32 / 2,
                3 => spread,
                4 => bound as i32 - 1 - spread,
                5 => ((i / 64) * 64 * bound / count) as i32,
                _ => any,
            }
        };
        (0..count).map(one).collect::<Vec<i32>>()
    });
    kinds.map(|values| integers(&bench.engine, &[count, 1], &values)).collect()
}

/// Rows and single elements.
pub fn indices_of(bench: &Bench) -> Outcome<()> {
    let table = "indices";
    bench.table(table, &KINDS);
    let n: u64 = if bench.small { 1 << 16 } else { 1 << 22 };
    let first = || Axes::from_slice(&[0]);
    for (what, targets, count, width) in
        [("elements", n, n, 1), ("elements into few", n / 1024, n, 1), ("rows of 128", n / 128, n / 128, 128)]
    {
        let shape = |rows: u64| if width == 1 { vec![rows] } else { vec![rows, width] };
        let table_of = Kind::Random.tensor(&bench.engine, &shape(targets))?;
        let updates = Kind::Random.tensor(&bench.engine, &shape(count))?;
        let given = indices(bench, count, targets)?;
        let f32 = |rows: u64| Type::new(DType::F32, &shape(rows));
        let run = |op: &Op, operands: &[Tensor], rows: u64| bench.all(op, operands, &[f32(rows)]);
        let gather = Op::from(Gather { axes: first() });
        let operands = |at: &Tensor| [table_of.clone(), at.clone(), updates.clone()];
        bench.row(table, &format!("gather of {what}"), &given, |at| run(&gather, &operands(at)[..2], count))?;
        let add = Op::from(IndexedAdd { axes: first() });
        bench.row(table, &format!("indexed_add of {what}"), &given, |at| run(&add, &operands(at), targets))?;
        let put = Op::from(IndexedPut { axes: first() });
        bench.row(table, &format!("indexed_put of {what}"), &given, |at| run(&put, &operands(at), targets))?;
    }
    Ok(())
}
