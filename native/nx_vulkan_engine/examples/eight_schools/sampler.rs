//! Hamiltonian Monte Carlo over K-step leapfrog chains: many Markov chains side by side, one batched dispatch per
//! transition.
//!
//! All chains share the step size and the diagonal mass matrix, both adapted in the warm-up from all of them together:
//! the step size by dual averaging towards an acceptance rate, the mass by the variance of the draws of a window.

use super::random::Random;

/// Runs leapfrog trajectories, whatever does the arithmetic.
pub trait Trajectories {
    type Error;

    /// `k_steps` leapfrog steps of every chain. `q` and `p` are `[chain][coordinate]` row-major, `inv_mass` is shared.
    fn run(&mut self, q: &[f64], p: &[f64], inv_mass: &[f64], eps: f64, k_steps: usize) -> Result<Ends, Self::Error>;
}

/// The last state of every trajectory.
#[derive(Debug, Clone)]
pub struct Ends {
    pub q: Vec<f64>,
    pub p: Vec<f64>,
    pub logp: Vec<f64>,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub chains: usize,
    pub d: usize,
    pub warmup: usize,
    /// Draws kept per chain.
    pub draws: usize,
    /// Leapfrog steps of a trajectory.
    pub k_steps: usize,
    /// Acceptance rate that the step size is adapted to.
    pub target_accept: f64,
    pub seed: u64,
}

#[derive(Debug, Clone)]
pub struct Samples {
    /// `[chain][draw * d + coordinate]`.
    pub draws: Vec<Vec<f64>>,
    pub accept_rate: f64,
    pub eps: f64,
    pub inv_mass: Vec<f64>,
}

impl Samples {
    /// `f` of every draw, per chain.
    pub fn map(&self, d: usize, f: impl Fn(&[f64]) -> f64) -> Vec<Vec<f64>> {
        self.draws.iter().map(|chain| chain.chunks_exact(d).map(&f).collect()).collect()
    }
}

/// Part of the step size that is drawn anew for each transition, so that no trajectory length resonates with the
/// posterior.
const JITTER: f64 = 0.3;
/// Starting points are uniform in a cube of this half width, as in Stan.
const START_RADIUS: f64 = 2.0;

struct Sampler<'a, T> {
    trajectories: &'a mut T,
    settings: &'a Settings,
    random: Random,
    q: Vec<f64>,
    logp: Vec<f64>,
    inv_mass: Vec<f64>,
}

/// Samples from the density that `trajectories` moves in.
///
/// # Errors
/// Whatever `trajectories` fails with.
pub fn sample<T: Trajectories>(trajectories: &mut T, settings: &Settings) -> Result<Samples, T::Error> {
    let mut random = Random::new(settings.seed);
    let q: Vec<f64> =
        (0..settings.chains * settings.d).map(|_| START_RADIUS * (2.0 * random.uniform() - 1.0)).collect();
    let inv_mass = vec![1.0; settings.d];
    // A step of size 0 leaves q where it is and gives the density there.
    let start = trajectories.run(&q, &vec![0.0; q.len()], &inv_mass, 0.0, 1)?;
    let mut sampler = Sampler { trajectories, settings, random, q, logp: start.logp, inv_mass };
    let eps = sampler.warm_up()?;

    let mut draws = vec![Vec::with_capacity(settings.draws * settings.d); settings.chains];
    let mut accepted = 0.0;
    for _ in 0..settings.draws {
        accepted += sampler.transition(eps)?;
        for (chain, q) in draws.iter_mut().zip(sampler.q.chunks_exact(settings.d)) {
            chain.extend_from_slice(q);
        }
    }
    let accept_rate = accepted / settings.draws as f64;
    Ok(Samples { draws, accept_rate, eps, inv_mass: sampler.inv_mass })
}

impl<T: Trajectories> Sampler<'_, T> {
    /// Adapts mass and step size; returns the step size.
    ///
    /// The first eighth only finds the step size; then come windows of a length that doubles, after each of which the
    /// mass is set from the window's draws and the step size is sought anew; the last eighth polishes the step size.
    fn warm_up(&mut self) -> Result<f64, T::Error> {
        let warmup = self.settings.warmup;
        let (first, last) = (warmup / 8, warmup - warmup / 8);
        let mut step = DualAveraging::new(0.1, self.settings.target_accept);
        let mut window = Welford::new(self.settings.d);
        let mut window_length = (warmup / 16).max(1);
        let mut window_end = first + window_length;
        for iteration in 0..warmup {
            let accept = self.transition(step.eps())?;
            step.update(accept);
            if iteration < first || iteration >= last {
                continue;
            }
            for q in self.q.chunks_exact(self.settings.d) {
                window.add(q);
            }
            let is_last = iteration + 1 == last;
            if iteration + 1 == window_end || is_last {
                self.inv_mass = window.variance();
                step = DualAveraging::new(step.mean_eps(), self.settings.target_accept);
                window = Welford::new(self.settings.d);
                window_length *= 2;
                // A window that the next one would not fit behind takes all that is left.
                window_end += window_length;
                if window_end + 2 * window_length > last {
                    window_end = last;
                }
            }
        }
        Ok(step.mean_eps())
    }

    /// Moves every chain by one trajectory; returns the mean acceptance probability.
    fn transition(&mut self, eps: f64) -> Result<f64, T::Error> {
        let d = self.settings.d;
        let eps = eps * (1.0 + JITTER * (2.0 * self.random.uniform() - 1.0));
        let p: Vec<f64> = (0..self.q.len()).map(|i| self.random.normal() / self.inv_mass[i % d].sqrt()).collect();
        let ends = self.trajectories.run(&self.q, &p, &self.inv_mass, eps, self.settings.k_steps)?;
        let mut total = 0.0;
        for chain in 0..self.settings.chains {
            let row = chain * d..(chain + 1) * d;
            let before = self.logp[chain] - self.kinetic(&p[row.clone()]);
            let after = ends.logp[chain] - self.kinetic(&ends.p[row.clone()]);
            let gain = after - before;
            // A trajectory that ran away ends in NaN, and is refused; f64::min would make 1 of it.
            let accept = if gain.is_nan() { 0.0 } else { gain.exp().min(1.0) };
            total += accept;
            if self.random.uniform() < accept {
                self.q[row.clone()].copy_from_slice(&ends.q[row]);
                self.logp[chain] = ends.logp[chain];
            }
        }
        Ok(total / self.settings.chains as f64)
    }

    fn kinetic(&self, p: &[f64]) -> f64 {
        p.iter().zip(&self.inv_mass).map(|(p, m)| 0.5 * m * p * p).sum()
    }
}

/// Step size adaptation of Hoffman and Gelman, "The No-U-Turn Sampler", JMLR 15, 2014, section 3.2, with their
/// constants.
struct DualAveraging {
    target: f64,
    centre: f64,
    iteration: f64,
    error_sum: f64,
    log_eps: f64,
    log_eps_mean: f64,
}

impl DualAveraging {
    const GAMMA: f64 = 0.05;
    const T0: f64 = 10.0;
    const KAPPA: f64 = 0.75;

    fn new(eps: f64, target: f64) -> Self {
        Self {
            target,
            centre: (10.0 * eps).ln(),
            iteration: 0.0,
            error_sum: 0.0,
            log_eps: eps.ln(),
            log_eps_mean: eps.ln(),
        }
    }

    fn update(&mut self, accept: f64) {
        self.iteration += 1.0;
        let t = self.iteration;
        let weight = 1.0 / (t + Self::T0);
        self.error_sum = (1.0 - weight) * self.error_sum + weight * (self.target - accept);
        self.log_eps = self.centre - t.sqrt() / Self::GAMMA * self.error_sum;
        let weight = t.powf(-Self::KAPPA);
        self.log_eps_mean = weight * self.log_eps + (1.0 - weight) * self.log_eps_mean;
    }

    fn eps(&self) -> f64 {
        self.log_eps.exp()
    }

    fn mean_eps(&self) -> f64 {
        self.log_eps_mean.exp()
    }
}

/// Running mean and variance of each coordinate.
struct Welford {
    count: f64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl Welford {
    fn new(d: usize) -> Self {
        Self { count: 0.0, mean: vec![0.0; d], squares: vec![0.0; d] }
    }

    fn add(&mut self, q: &[f64]) {
        self.count += 1.0;
        for ((x, mean), squares) in q.iter().zip(&mut self.mean).zip(&mut self.squares) {
            let delta = x - *mean;
            *mean += delta / self.count;
            *squares += delta * (x - *mean);
        }
    }

    /// Shrunk towards 0.001 by the weight of five draws, as in Stan.
    fn variance(&self) -> Vec<f64> {
        let n = self.count;
        let shrink = |squares: &f64| squares / (n - 1.0).max(1.0) * n / (n + 5.0) + 1e-3 * 5.0 / (n + 5.0);
        self.squares.iter().map(shrink).collect()
    }
}
