//! The non-centred eight-schools posterior (posteriordb, `eight_schools_noncentered`) and its leapfrog chain in f64 on
//! the CPU.
//!
//! `q = (mu, log tau, theta_tilde[0..8])` with `mu ~ N(0, 5)`, `tau ~ HalfCauchy(0, 5)`, `theta_tilde[j] ~ N(0, 1)` and
//! `y[j] ~ N(mu + tau theta_tilde[j], sigma[j])`. The density is that of `q` itself: normalised, with the Jacobian of
//! `log tau`.

use super::sampler::{Ends, Trajectories};
use std::convert::Infallible;
use std::f64::consts::PI;

pub const SCHOOLS: usize = 8;
/// Coordinates of `q`.
pub const D: usize = 2 + SCHOOLS;

/// Effects of coaching on test scores, and their standard errors (Rubin 1981).
pub const Y: [f64; SCHOOLS] = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0];
pub const SIGMA: [f64; SCHOOLS] = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0];

/// Standard deviation of the prior of `mu`, scale of that of `tau`.
const PRIOR_SCALE: f64 = 5.0;

/// Log density of `q` and its gradient.
pub fn logp_grad(q: &[f64]) -> (f64, [f64; D]) {
    let (mu, log_tau, theta) = (q[0], q[1], &q[2..D]);
    let tau = log_tau.exp();
    let half_log_2pi = 0.5 * (2.0 * PI).ln();
    let mut grad = [0.0; D];

    let z = mu / PRIOR_SCALE;
    let mut logp = -0.5 * z * z - PRIOR_SCALE.ln() - half_log_2pi;
    grad[0] = -z / PRIOR_SCALE;

    let ratio = tau / PRIOR_SCALE;
    logp += (2.0 / (PI * PRIOR_SCALE)).ln() + log_tau - (ratio * ratio).ln_1p();
    grad[1] = 1.0 - 2.0 / (1.0 + 1.0 / (ratio * ratio));

    for j in 0..SCHOOLS {
        let z = (Y[j] - mu - tau * theta[j]) / SIGMA[j];
        let score = z / SIGMA[j];
        logp += -0.5 * (z * z + theta[j] * theta[j]) - SIGMA[j].ln() - 2.0 * half_log_2pi;
        grad[0] += score;
        grad[1] += score * tau * theta[j];
        grad[2 + j] = score * tau - theta[j];
    }
    (logp, grad)
}

/// The states of a chain after each of its steps, `[k][i]` row-major; `grad` and `logp` are taken at the step's new
/// `q`.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    pub q: Vec<f64>,
    pub p: Vec<f64>,
    pub grad: Vec<f64>,
    pub logp: Vec<f64>,
}

/// `k_steps` leapfrog steps from `(q, p)`.
pub fn leapfrog(q: &[f64], p: &[f64], inv_mass: &[f64], eps: f64, k_steps: usize) -> Chain {
    let (mut q, mut p) = (q.to_vec(), p.to_vec());
    let (_, mut grad) = logp_grad(&q);
    let mut chain = Chain::default();
    for _ in 0..k_steps {
        for i in 0..D {
            p[i] += 0.5 * eps * grad[i];
            q[i] += eps * inv_mass[i] * p[i];
        }
        let (logp, new_grad) = logp_grad(&q);
        grad = new_grad;
        for i in 0..D {
            p[i] += 0.5 * eps * grad[i];
        }
        chain.q.extend_from_slice(&q);
        chain.p.extend_from_slice(&p);
        chain.grad.extend_from_slice(&grad);
        chain.logp.push(logp);
    }
    chain
}

/// Trajectories of the posterior on the CPU.
pub struct Cpu;

impl Trajectories for Cpu {
    type Error = Infallible;

    fn run(&mut self, q: &[f64], p: &[f64], inv_mass: &[f64], eps: f64, k_steps: usize) -> Result<Ends, Infallible> {
        let mut ends = Ends { q: Vec::new(), p: Vec::new(), logp: Vec::new() };
        for (q, p) in q.chunks_exact(D).zip(p.chunks_exact(D)) {
            let chain = leapfrog(q, p, inv_mass, eps, k_steps);
            ends.q.extend_from_slice(&chain.q[chain.q.len() - D..]);
            ends.p.extend_from_slice(&chain.p[chain.p.len() - D..]);
            ends.logp.push(chain.logp[k_steps - 1]);
        }
        Ok(ends)
    }
}
