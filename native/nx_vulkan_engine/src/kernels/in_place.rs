//! Which results of a launch may lie where its operands do.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Arguments, Pairs, Place};

impl Place<'_> {
    fn is_of(&self, other: &Place<'_>) -> bool {
        Arc::ptr_eq(self.buffer, other.buffer)
    }

    /// Where in its buffer it begins.
    fn begin(&self) -> u64 {
        self.address.wrapping_sub(self.buffer.address())
    }

    /// Whether each index has its element at the same bytes of the two buffers, where both have the layout of the
    /// launch's positions.
    fn lies_as(&self, other: &Place<'_>) -> bool {
        self.element_bytes == other.element_bytes && self.begin() == other.begin()
    }
}

/// Pairs of places of which the second may share its memory with the first, if nothing else uses either meanwhile. Of
/// the operands and results whose numbers `is_whole` accepts elements lie in the order of the launch's positions,
/// without gaps.
///
/// For kernels whose invocations load all that they read before they store anything, and need alone what lies at the
/// positions that they store to: where an input's element lies at the bytes of the output's, nobody else has written
/// it. Other kernels read elements that other invocations write.
pub(super) fn pairs(arguments: &Arguments<'_>, first_output: usize, is_whole: impl Fn(usize) -> bool) -> Pairs {
    let Some((inputs, outputs)) = arguments.places.split_at_checked(first_output) else { return Pairs::new() };
    // What is read in two ways is read where others write.
    let read_once = |input: &Place<'_>| {
        let mut same = inputs.iter().enumerate().filter(|(_, other)| other.is_of(input));
        same.all(|(k, other)| is_whole(k) && other.lies_as(input)) && !outputs.iter().any(|output| output.is_of(input))
    };
    let read: SmallVec<[(usize, &Place<'_>); 4]> =
        inputs.iter().enumerate().filter(|&(k, input)| is_whole(k) && read_once(input)).collect();
    let mut pairs = Pairs::new();
    for (k, output) in (first_output..).zip(outputs) {
        let written_once = outputs.iter().filter(|other| other.is_of(output)).count() == 1;
        if is_whole(k) && written_once {
            pairs.extend(read.iter().filter(|(_, input)| input.lies_as(output)).map(|&(input, _)| (input, k)));
        }
    }
    pairs
}

/// What a module says about a pointer that nothing else may touch, which compilers may move loads past stores for.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) fn exclusive(words: &[u32]) -> Option<rspirv::dr::Instruction> {
    use rspirv::dr::Operand;
    use rspirv::spirv::Decoration;

    let exclusive = [Decoration::Restrict, Decoration::RestrictPointer, Decoration::NonWritable];
    let is_exclusive = |operand: &Operand| matches!(operand, Operand::Decoration(d) if exclusive.contains(d));
    let annotations = rspirv::dr::load_words(words).unwrap().annotations;
    annotations.into_iter().find(|annotation| annotation.operands.iter().any(is_exclusive))
}
