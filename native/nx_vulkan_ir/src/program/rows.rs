//! Which plans have rows that a workgroup holds in its registers.

use super::fused::Plan;

/// Reductions that one kernel of rows has at most: the template has trees for so many.
pub(crate) const MAX_REDUCTIONS: usize = 6;

/// What a device's kernels of rows hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimits {
    /// Elements that one invocation holds at most.
    pub elements: u32,
    /// 32-bit registers that these may take.
    pub registers: u32,
    /// Invocations that may share a row, a power of two.
    pub invocations: u32,
    /// Those that may share one whose elements are apart in memory.
    pub column_invocations: u32,
    /// Invocations up to which programs are given such kernels.
    pub planned_invocations: u32,
}

impl RowLimits {
    /// Elements of so many words that one invocation may hold.
    pub fn elements_of(&self, words: u32) -> u32 {
        (self.registers / words.max(1)).clamp(1, self.elements)
    }

    /// Whether rows of the plan are held best in the registers of a workgroup, whose trees give the same bits as those
    /// of reductions alone.
    pub fn fit(&self, plan: &Plan) -> bool {
        let most = self.planned_invocations.min(self.invocations);
        let invocations = if is_columns(plan) { self.column_invocations.min(most) } else { most };
        let depends_on_order = |(_, value)| plan.reducer(value).is_some_and(|reducer| reducer.depends_on_order());
        plan.reductions().count() <= MAX_REDUCTIONS
            && !plan.reductions().any(depends_on_order)
            && !plan.stores.is_empty()
            && plan.row_elements() <= u64::from(self.elements_of(plan.live_words(true))) * u64::from(invocations)
    }
}

/// Whether neighbours in memory are elements of different rows.
pub fn is_columns(plan: &Plan) -> bool {
    plan.space.iter().rposition(|&n| n > 1).is_some_and(|axis| !plan.axes.contains(&axis))
}
