//! Ops that run programs: loops and branches.

use super::Program;
use super::counted::Trips;

/// The attributes of `while`. Its operands are the state, then what both programs read besides; each takes all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Loop {
    /// Gives one scalar: whether to go on.
    pub condition: Program,
    /// Gives the next state.
    pub body: Program,
    /// What a pass found out of how often it runs.
    pub trips: Option<Trips>,
}

/// The attributes of `cond`. Its first operand is a scalar, which chooses the program that takes the others; the other
/// program does not run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Branches {
    /// Runs where the predicate is not 0.
    pub on_true: Program,
    /// Runs where it is 0.
    pub on_false: Program,
}

impl Loop {
    /// A loop of a condition and a body.
    pub fn new(condition: Program, body: Program) -> Loop {
        Loop { condition, body, trips: None }
    }

    /// How often it runs, if that is known before.
    pub fn known_trips(&self) -> Option<u64> {
        match self.trips {
            Some(Trips::Known(trips)) => Some(trips),
            Some(Trips::Counted(_) | Trips::Guarded) | None => None,
        }
    }
}
