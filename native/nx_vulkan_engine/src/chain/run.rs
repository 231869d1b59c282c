//! Runs of chains in parts, so that no submission takes long, others get their turn, and who gives up waiting for a run
//! ends it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::Progress;
use super::form::Steps;
use super::grouped::Groups;
use crate::kernels::Compile;
use crate::{Engine, GoesOn, Result, Tensor};

/// Parts of a run that wait for the device or are with it.
const MAX_AHEAD: usize = 2;

/// How long a part takes once the device has shown how fast it is.
pub(super) const PART: Duration = Duration::from_millis(50);

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
    pub(super) place: Position,
    pace: Pace,
    /// How it ended, once its last part is recorded or one could not be.
    ended: Option<Result<()>>,
}

/// How far a run is.
#[derive(Debug)]
pub(super) enum Position {
    Workgroup(Box<Groups>),
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

/// The size of the second part of a run of which all that is known is that its first one was as long as a submission
/// may be: others wait for both.
pub(super) fn later(first: u64) -> u64 {
    (first / 4).max(1)
}

impl Run {
    pub(super) fn new(
        engine: &Arc<Engine>,
        steps: &Arc<Steps>,
        (inputs, results): (Vec<Tensor>, Vec<Tensor>),
        [chains, count]: [u64; 2],
        (place, parts): (Position, Parts),
    ) -> Run {
        let (engine, steps) = (Arc::clone(engine), Arc::clone(steps));
        Run { engine, steps, inputs, results, chains, count, place, pace: Pace::new(parts), ended: None }
    }

    /// Records the next part and answers whether that was the last one. It waits where two parts are still to be done
    /// by the device. A run that has ended records nothing more and answers the same again.
    ///
    /// # Errors
    /// What allocation and recording answer; then the run has ended.
    pub fn advance(&mut self) -> Result<bool> {
        self.advance_while(&|| true)
    }

    /// As [`Run::advance`], for as long as `goes_on` says so, which is asked between the runs of steps that wait for
    /// the device, and within their loops.
    ///
    /// # Errors
    /// As [`Run::advance`], and `Stopped` where `goes_on` ends it.
    pub fn advance_while(&mut self, goes_on: GoesOn<'_>) -> Result<bool> {
        if let Some(ended) = &self.ended {
            return ended.clone().map(|()| true);
        }
        let recorded = self.record(goes_on);
        if !matches!(recorded, Ok(false)) {
            self.ended = Some(recorded.clone().map(|_| ()));
        }
        recorded
    }

    /// The run in parts that take so long.
    pub fn in_parts_that_take(mut self, part: Duration) -> Run {
        self.pace.part = part;
        if part < PART {
            self.pace.size = ((self.pace.size as f64 * part.as_secs_f64() / PART.as_secs_f64()) as u64).max(1);
        }
        self
    }

    fn record(&mut self, goes_on: GoesOn<'_>) -> Result<bool> {
        let steps = Arc::clone(&self.steps);
        if steps.pauses() {
            self.pace.wait(&self.engine)?;
            if let Some(size) = steps.look(self)?
                && let Some(took) = self.pace.ended(size)
            {
                steps.note(took, size);
            }
        }
        self.pace.catch_up(&self.engine)?;
        let size = self.pace.size;
        let (recorded, is_done) = steps.advance(self, size, goes_on)?;
        // One kernel goes with whatever is submitted next.
        if !is_done || !self.pace.ahead.is_empty() || matches!(self.place, Position::Device(_)) {
            self.pace.submit(&self.engine, recorded)?;
        }
        Ok(is_done)
    }

    /// Records all parts and answers what the chains leave: the outputs of each step, `[chains, steps, ..]`, which the
    /// device fills.
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
    /// How long a part should take.
    part: Duration,
    ahead: VecDeque<Part>,
    /// When the last part ended.
    last_end: Option<Instant>,
}

#[derive(Debug)]
struct Part {
    serial: u64,
    size: u64,
    /// When it was submitted, or began behind others. Too early rather than too late: a part that seems short makes
    /// those after it long.
    begun: Instant,
}

impl Pace {
    fn new(parts: Parts) -> Pace {
        Pace { size: parts.first, parts, part: PART, ahead: VecDeque::new(), last_end: None }
    }

    fn submit(&mut self, engine: &Engine, size: u64) -> Result<()> {
        // The device may be done before this thread goes on.
        let begun = Instant::now();
        let serial = engine.stream().flush()?;
        self.ahead.push_back(Part { serial, size, begun });
        if self.last_end.is_none() {
            self.size = self.parts.next;
        }
        Ok(())
    }

    /// Waits until the device has little ahead of it.
    fn catch_up(&mut self, engine: &Engine) -> Result<()> {
        while self.ahead.len() >= MAX_AHEAD {
            self.wait(engine)?;
            let Some(part) = self.ahead.pop_front() else { return Ok(()) };
            self.measured(&part, Instant::now());
        }
        Ok(())
    }

    /// Waits for the end of the first part ahead. What others do before it is not its time, as far as the end of that
    /// is seen.
    fn wait(&mut self, engine: &Engine) -> Result<()> {
        let Some(part) = self.ahead.front_mut() else { return Ok(()) };
        let before = part.serial.saturating_sub(1);
        if !engine.stream().is_complete(before) {
            engine.stream().wait_serial(before)?;
            // Where this thread saw that end too late, only the time from its submission is sure not to be too short.
            if !engine.stream().is_complete(part.serial) {
                part.begun = Instant::now();
            }
        }
        engine.stream().wait_serial(part.serial)
    }

    /// Takes the first part ahead for ended, which did as much as `size`. Answers its time.
    fn ended(&mut self, size: u64) -> Option<Duration> {
        let part = self.ahead.pop_front()?;
        Some(self.measured(&Part { size, ..part }, Instant::now()))
    }

    /// Chooses the size of the next part by the time of one that ended, which it answers.
    fn measured(&mut self, part: &Part, now: Instant) -> Duration {
        let begun = self.last_end.map_or(part.begun, |ended| ended.max(part.begun));
        let took = now.saturating_duration_since(begun).max(Duration::from_micros(1));
        let wanted = part.size as f64 * self.part.as_secs_f64() / took.as_secs_f64();
        self.size = (wanted as u64).min(part.size.saturating_mul(MAX_GROWTH)).min(self.parts.most).max(1);
        self.last_end = Some(now);
        took
    }
}

#[cfg(test)]
impl Run {
    /// The run in parts of this size, as far as they are not measured.
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
        let part = |size: u64, submitted: u64| Part { serial: 1, size, begun: at(submitted) };
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
