//! How much memory a program takes whose instructions run one by one.

use super::fused::shows_first;
use super::{Instruction, Op, Operand, Program};
use crate::Type;

/// What buffers are multiples of.
const GRANULE_BYTES: u64 = 256;

fn size_bytes(ty: &Type) -> u64 {
    let size_bytes = ty.elements().saturating_mul(ty.dtype.size_bytes()).max(1);
    size_bytes.checked_next_multiple_of(GRANULE_BYTES).unwrap_or(u64::MAX)
}

impl Program {
    /// The most bytes that results take at once where the instructions run in order and a result's memory goes back
    /// after the last one that reads it. Views share memory, constants take none; inputs, and what ops need besides
    /// their results, are not counted.
    pub fn evaluated_bytes(&self) -> u64 {
        let memory = self.memory();
        let of = |operand: &Operand| match *operand {
            Operand::Input(_) => None,
            Operand::Result(i) => memory.get(i as usize).copied().flatten(),
        };
        let mut last = vec![0; memory.len()];
        for (at, instruction) in self.instructions.iter().enumerate() {
            instruction.operands.iter().filter_map(of).for_each(|made| last[made] = at);
        }
        self.outputs.iter().filter_map(of).for_each(|made| last[made] = usize::MAX);
        let mut made = 0;
        let (mut live, mut most) = (0u64, 0u64);
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); self.instructions.len()];
        for (at, instruction) in self.instructions.iter().enumerate() {
            most = most.max(live.saturating_add(instruction.inner_bytes()));
            for ty in &instruction.outs {
                if memory.get(made).copied().flatten() == Some(made) {
                    live = live.saturating_add(size_bytes(ty));
                    // What nothing reads goes back at once.
                    if let Some(end) = ends.get_mut(last[made].max(at)) {
                        end.push(size_bytes(ty));
                    }
                }
                made += 1;
            }
            most = most.max(live);
            live = ends[at].iter().fold(live, |live, bytes| live.saturating_sub(*bytes));
        }
        most
    }

    /// For each result the one in whose memory it lies: itself, or what it is a view of; none for constants and views
    /// of inputs.
    fn memory(&self) -> Vec<Option<usize>> {
        let mut memory: Vec<Option<usize>> = Vec::new();
        for Instruction { op, operands, outs } in &self.instructions {
            for _ in outs {
                memory.push(match (op, operands.first()) {
                    (Op::Constant(_), _) => None,
                    (op, Some(Operand::Input(_))) if shows_first(op) => None,
                    (op, Some(Operand::Result(i))) if shows_first(op) => memory.get(*i as usize).copied().flatten(),
                    _ => Some(memory.len()),
                });
            }
        }
        memory
    }
}

impl Instruction {
    /// What the programs inside of the op take, their results included.
    fn inner_bytes(&self) -> u64 {
        match &self.op {
            Op::Fused(body) | Op::Workgroup(body) => body.evaluated_bytes(),
            Op::Cond(op) => op.on_true.evaluated_bytes().max(op.on_false.evaluated_bytes()),
            // An iteration reads the state that the one before it left.
            Op::While(op) => {
                let state = self.outs.iter().fold(0u64, |sum, ty| sum.saturating_add(size_bytes(ty)));
                state.saturating_add(op.body.evaluated_bytes().max(op.condition.evaluated_bytes()))
            }
            op => op.inside().map(Program::evaluated_bytes).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::DType;
    use crate::program::{Builder, Operand};

    const N: u64 = 1024;
    const BYTES: u64 = 4 * N;

    /// What a program of one vector takes, in vectors.
    fn vectors(make: impl FnOnce(&Builder, Operand) -> Vec<Operand>) -> u64 {
        let b = Builder::new();
        let x = b.input(DType::F32, &[N]);
        let outputs = make(&b, x);
        b.finish(&outputs).unwrap().evaluated_bytes() / BYTES
    }

    #[test]
    fn a_result_lives_until_it_is_read_last() {
        assert_eq!(vectors(|_, x| vec![x]), 0);
        assert_eq!(vectors(|b, x| vec![b.sin(b.sin(b.sin(x)))]), 2);
        // Terms that are added up: the sum, a term, and what that is made of, or the next sum.
        let terms = |b: &Builder, x: Operand| (0..32).fold(x, |sum, _| b.add(sum, b.sin(b.cos(x))));
        assert_eq!(vectors(|b, x| vec![terms(b, x)]), 3);
        // First all terms, then the sum.
        let later = |b: &Builder, x: Operand| {
            let terms: Vec<Operand> = (0..32).map(|_| b.cos(x)).collect();
            vec![terms.into_iter().reduce(|sum, term| b.add(sum, term)).unwrap()]
        };
        assert_eq!(vectors(later), 33);
        // Outputs stay, what nothing reads does not.
        assert_eq!(vectors(|b, x| vec![b.sin(x), b.cos(x), b.tan(x)]), 3);
        let unread = |b: &Builder, x: Operand| {
            (0..9).for_each(|_| {
                b.sin(x);
            });
            vec![b.cos(x)]
        };
        assert_eq!(vectors(unread), 1);
    }

    #[test]
    fn views_and_constants_take_nothing() {
        assert_eq!(vectors(|b, x| vec![b.transpose(b.reshape(x, &[2, N / 2]), &[1, 0])]), 0);
        let views = |b: &Builder, x: Operand| {
            let y = b.sin(x);
            let z = b.reshape(y, &[2, N / 2]);
            // Lives until its view has been read.
            vec![b.add(b.reshape(b.cos(x), &[2, N / 2]), z)]
        };
        assert_eq!(vectors(views), 3);
        assert_eq!(vectors(|b, x| vec![b.add(x, b.number(DType::F32, 1.0))]), 1);
    }

    #[test]
    fn loops_and_branches_take_what_is_in_them() {
        let looped = |b: &Builder, x: Operand| {
            let goes_on = |b: &Builder, state: &[Operand]| b.less(b.sum(state[0], &[0]), 9.0);
            b.while_loop(&[x], &[], goes_on, |b, state| vec![b.sin(b.sin(b.sin(state[0])))])
        };
        assert_eq!(vectors(looped), 3);
        let branches = |b: &Builder, x: Operand| {
            let holds = b.less(b.sum(x, &[0]), 9.0);
            b.cond(holds, &[x], |b, x| vec![b.sin(x[0])], |b, x| vec![b.sin(b.cos(x[0]))])
        };
        assert_eq!(vectors(branches), 2);
    }
}
