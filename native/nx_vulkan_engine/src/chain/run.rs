//! Runs of chains in parts, so that no submission takes long, others get their turn, and who gives up waiting for a run ends it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::Progress;
use super::form::Steps;
use crate::kernel::launch::Compile;
use crate::{Engine, Result, Tensor};

/// Parts of a run that wait for the device or are with it.
const MAX_AHEAD: usize = 2;

/// How long a part takes once the device has shown how fast it is.
const PART: Duration = Duration::from_millis(50);

/// How much longer the next part is than the last one that ended, at most.
const MAX_GROWTH: u64 = 2;

/// Chains that have been started. What they leave has the same bits however many parts they take.
#[derive(Debug)]
pub struct Run {
    pub(super) engine: Arc<Engine>,
    steps: Arc<Steps>,
    /// In row-major order.
    pub(super) inputs: Vec<Tensor>,
    /// `[chains, steps, ..]`
    pub(super) results: Vec<Tensor>,
    pub(super) chains: u64,
    /// Steps that are kept of each chain.
    pub(super) count: u64,
    pub(super) place: Place,
    pace: Pace,
}

/// How far a run is.
#[derive(Debug)]
pub(super) enum Place {
    /// The counter of the next step of all chains.
    Workgroup(u64),
    Device(Box<Progress>),
}

/// How much a form records at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// Of the first part.
    pub first: u64,
    /// Of those after it, before anything was measured.
    pub next: u64,
    /// Of any part.
    pub most: u64,
}

/// The size of the second part of a run of which all that is known is that its first one was as long as a submission may be: others wait for both.
pub(super) fn later(first: u64) -> u64 {
    (first / 4).max(1)
}

impl Run {
    pub(super) fn new(
        engine: &Arc<Engine>,
        steps: &Arc<Steps>,
        (inputs, results): (Vec<Tensor>, Vec<Tensor>),
        [chains, count]: [u64; 2],
        (place, parts): (Place, Parts),
    ) -> Run {
        let (engine, steps) = (Arc::clone(engine), Arc::clone(steps));
        Run { engine, steps, inputs, results, chains, count, place, pace: Pace::new(parts) }
    }

    /// Records the next part and answers whether that was the last one. It waits where two parts are still to be done by the device.
    ///
    /// # Errors
    /// What allocation and recording answer; then the run can't go on.
    pub fn advance(&mut self) -> Result<bool> {
        self.pace.catch_up(&self.engine)?;
        let size = self.pace.size;
        let steps = Arc::clone(&self.steps);
        let (recorded, is_done) = steps.advance(self, size)?;
        // One kernel goes with whatever is submitted next.
        if !is_done || !self.pace.ahead.is_empty() || matches!(self.place, Place::Device(_)) {
            self.pace.submit(&self.engine, recorded)?;
        }
        Ok(is_done)
    }

    /// Records all parts and answers what the chains leave: the outputs of each step, `[chains, steps, ..]`, which the device fills.
    ///
    /// # Errors
    /// As [`Run::advance`].
    pub fn finish(mut self) -> Result<Vec<Tensor>> {
        while !self.advance()? {}
        Ok(self.results)
    }

    /// What the chains leave. It is whole where the last part is recorded.
    pub fn results(&self) -> &[Tensor] {
        &self.results
    }

    /// Refuses a run of several parts where the caller can't wait for the device.
    pub(super) fn refuse(compile: Compile, is_single: bool) -> Result<()> {
        match compile {
            Compile::Refused if !is_single => Err(crate::Error::NeedsCompile),
            _ => Ok(()),
        }
    }
}

/// How large parts are, and which of them the device has not done.
#[derive(Debug)]
struct Pace {
    size: u64,
    parts: Parts,
    ahead: VecDeque<Part>,
    /// When the last part ended.
    ended: Option<Instant>,
}

#[derive(Debug)]
struct Part {
    serial: u64,
    size: u64,
    submitted: Instant,
}

impl Pace {
    fn new(parts: Parts) -> Pace {
        Pace { size: parts.first, parts, ahead: VecDeque::new(), ended: None }
    }

    fn submit(&mut self, engine: &Engine, size: u64) -> Result<()> {
        let serial = engine.stream().flush()?;
        self.ahead.push_back(Part { serial, size, submitted: Instant::now() });
        if self.ended.is_none() {
            self.size = self.parts.next;
        }
        Ok(())
    }

    /// Waits until the device has little ahead of it.
    fn catch_up(&mut self, engine: &Engine) -> Result<()> {
        while self.ahead.len() >= MAX_AHEAD {
            let Some(part) = self.ahead.pop_front() else { return Ok(()) };
            engine.stream().wait_serial(part.serial)?;
            self.measured(&part, Instant::now());
        }
        Ok(())
    }

    /// Chooses the size of the next part by the time of one that ended.
    fn measured(&mut self, part: &Part, now: Instant) {
        let begun = self.ended.map_or(part.submitted, |ended| ended.max(part.submitted));
        let took = now.saturating_duration_since(begun).max(Duration::from_micros(1));
        let wanted = part.size as f64 * PART.as_secs_f64() / took.as_secs_f64();
        self.size = (wanted as u64).clamp(1, part.size.saturating_mul(MAX_GROWTH)).min(self.parts.most);
        self.ended = Some(now);
    }
}

#[cfg(test)]
impl Run {
    /// The same in parts of this size, as far as they are not measured.
    pub(super) fn in_parts_of(mut self, size: u64) -> Run {
        self.pace = Pace::new(Parts { first: size, next: size, most: size });
        self
    }
}

/// Until when a run that waits for the device again and again goes on before others get their turn.
pub(super) fn turn_ends() -> Instant {
    Instant::now() + PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_as_long_as_they_should() {
        let mut pace = Pace::new(Parts { first: 1000, next: 2000, most: 5000 });
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let part = |size: u64, submitted: u64| Part { serial: 1, size, submitted: at(submitted) };
        assert_eq!(pace.size, 1000);
        pace.measured(&part(1000, 0), at(500));
        assert_eq!(pace.size, 100);
        // It was submitted early, but began when the one before ended.
        pace.measured(&part(100, 10), at(525));
        assert_eq!(pace.size, 200);
        pace.measured(&part(4000, 525), at(526));
        assert_eq!(pace.size, 5000);
        pace.measured(&part(1, 600), at(9000));
        assert_eq!(pace.size, 1);
        pace.measured(&part(1, 9000), at(9001));
        assert_eq!(pace.size, 2);
    }
}
