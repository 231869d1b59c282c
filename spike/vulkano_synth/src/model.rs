//! The regime model and its leapfrog chain in f64 on the CPU: the reference that the shaders are held against.
//!
//! Parameters, in the order of `q` (positive ones as logarithms, so that every real vector is inside the support):
//! `mu_trend, log sigma_trend, mu_mr, log sigma_mr, log sigma_vol, log theta_mr, logit_w1, logit_w2`.
//! With `r[-1] = 0` the density of a return is
//! `w1 N(mu_trend, sigma_trend) + w2 N(r[t-1] + theta_mr (mu_mr - r[t-1]), sigma_mr) + w3 N(0, sigma_vol)`,
//! `w = softmax(min(logit_w1, 10), min(logit_w2, 10), 0)`.

/// Free parameters of the model.
pub const D: usize = 8;

/// A prior of one coordinate of `q`.
#[derive(Clone, Copy, Debug)]
pub enum Prior {
    /// On the coordinate itself.
    Normal { mean: f64, sd: f64 },
    /// On `exp(coordinate)`, with the Jacobian of the logarithm.
    HalfCauchy { scale: f64 },
}

/// Priors in the order of `q`.
pub const PRIORS: [Prior; D] = [
    Prior::Normal { mean: 0.001, sd: 0.01 },
    Prior::HalfCauchy { scale: 0.02 },
    Prior::Normal { mean: 0.0, sd: 0.01 },
    Prior::HalfCauchy { scale: 0.02 },
    Prior::HalfCauchy { scale: 0.05 },
    Prior::HalfCauchy { scale: 0.5 },
    Prior::Normal { mean: 0.0, sd: 1.0 },
    Prior::Normal { mean: 0.0, sd: 1.0 },
];

const LOGIT_MAX: f64 = 10.0;

/// Where a chain starts and what it needs: the content of the shader's inputs.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub q: [f64; D],
    pub p: [f64; D],
    pub returns: Vec<f64>,
    pub inv_mass: [f64; D],
    pub eps: f64,
    pub k_steps: usize,
}

/// The state after one leapfrog step; `grad` and `logp` are taken at this `q`.
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub q: [f64; D],
    pub p: [f64; D],
    pub grad: [f64; D],
    pub logp: f64,
}

/// Log density of `q`, normalised, and its gradient.
pub fn logp_grad(q: &[f64; D], returns: &[f64]) -> (f64, [f64; D]) {
    let half_log_2pi = 0.5 * (2.0 * std::f64::consts::PI).ln();
    let mut logp = 0.0;
    let mut grad = [0.0; D];
    let [mu_trend, log_sigma1, mu_mr, log_sigma2, log_sigma3, log_theta, logit1, logit2] = *q;
    let (sigma1, sigma2, sigma3) = (log_sigma1.exp(), log_sigma2.exp(), log_sigma3.exp());
    let theta = log_theta.exp();
    let weights = [logit1.min(LOGIT_MAX).exp(), logit2.min(LOGIT_MAX).exp(), 1.0];
    let weights_sum: f64 = weights.iter().sum();

    let mut before = 0.0;
    for &r in returns {
        let z = [(r - mu_trend) / sigma1, (r - (before + theta * (mu_mr - before))) / sigma2, r / sigma3];
        let sigmas = [sigma1, sigma2, sigma3];
        let terms: [f64; 3] = std::array::from_fn(|j| {
            (weights[j] / weights_sum).ln() - sigmas[j].ln() - 0.5 * z[j] * z[j] - half_log_2pi
        });
        let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = top + terms.iter().map(|t| (t - top).exp()).sum::<f64>().ln();
        let share: [f64; 3] = std::array::from_fn(|j| (terms[j] - total).exp());
        logp += total;
        grad[0] += share[0] * z[0] / sigma1;
        grad[1] += share[0] * (z[0] * z[0] - 1.0);
        grad[2] += share[1] * z[1] / sigma2 * theta;
        grad[3] += share[1] * (z[1] * z[1] - 1.0);
        grad[4] += share[2] * (z[2] * z[2] - 1.0);
        grad[5] += share[1] * z[1] / sigma2 * theta * (mu_mr - before);
        if logit1 < LOGIT_MAX {
            grad[6] += share[0] - weights[0] / weights_sum;
        }
        if logit2 < LOGIT_MAX {
            grad[7] += share[1] - weights[1] / weights_sum;
        }
        before = r;
    }
    for (i, prior) in PRIORS.iter().enumerate() {
        match *prior {
            Prior::Normal { mean, sd } => {
                let z = (q[i] - mean) / sd;
                logp -= 0.5 * z * z + sd.ln() + half_log_2pi;
                grad[i] -= z / sd;
            }
            Prior::HalfCauchy { scale } => {
                let ratio = q[i].exp() / scale;
                let square = ratio * ratio;
                logp += (2.0 / (std::f64::consts::PI * scale)).ln() + q[i] - square.ln_1p();
                grad[i] += 1.0 - 2.0 / (1.0 + 1.0 / square);
            }
        }
    }
    (logp, grad)
}

/// `k_steps` leapfrog steps, in the order of operations of the shader.
pub fn leapfrog(inputs: &Inputs) -> Vec<State> {
    let (mut q, mut p) = (inputs.q, inputs.p);
    let (_, mut grad) = logp_grad(&q, &inputs.returns);
    let mut logp;
    let mut chain = Vec::with_capacity(inputs.k_steps);
    for _ in 0..inputs.k_steps {
        for i in 0..D {
            p[i] += 0.5 * inputs.eps * grad[i];
            q[i] += inputs.eps * inputs.inv_mass[i] * p[i];
        }
        (logp, grad) = logp_grad(&q, &inputs.returns);
        for i in 0..D {
            p[i] += 0.5 * inputs.eps * grad[i];
        }
        chain.push(State { q, p, grad, logp });
    }
    chain
}

/// Hamiltonian of a state: kinetic energy less log density.
pub fn energy(inputs: &Inputs, p: &[f64; D], logp: f64) -> f64 {
    let kinetic: f64 = p.iter().zip(&inputs.inv_mass).map(|(p, m)| 0.5 * p * p * m).sum();
    kinetic - logp
}

impl Inputs {
    /// The benchmark: d = 8, 200 returns in [-0.01, 0.01), K = 32, eps = 0.05, the published `q0`.
    pub fn benchmark() -> Self {
        let mut random = SplitMix64(20_240_611);
        let returns = (0..200).map(|_| random.unit() * 0.02 - 0.01).collect();
        let p = std::array::from_fn(|i| random.normal() / INV_MASS[i].sqrt());
        Self {
            q: [0.01, 0.05, 0.02, 0.05, 0.02, 0.05, 0.05, 0.05],
            p,
            returns,
            inv_mass: INV_MASS,
            eps: 0.05,
            k_steps: 32,
        }
    }

    /// The same inputs with every number rounded to f32, which is what the f32 shader is given.
    pub fn rounded_to_f32(&self) -> Self {
        let round = |x: f64| x as f32 as f64;
        Self {
            q: self.q.map(round),
            p: self.p.map(round),
            returns: self.returns.iter().copied().map(round).collect(),
            inv_mass: self.inv_mass.map(round),
            eps: round(self.eps),
            k_steps: self.k_steps,
        }
    }
}

/// Diagonal of the inverse mass matrix.
pub const INV_MASS: [f64; D] = [1e-5, 0.02, 1e-5, 0.02, 0.02, 0.02, 0.1, 0.1];

/// Steele, Lea and Flood's generator: the inputs are the same on every machine.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradient_is_the_central_difference_of_logp() {
        let inputs = Inputs::benchmark();
        let points =
            [inputs.q, [0.001, -5.0, 0.0, -4.5, -4.0, -0.5, 0.3, -0.7], [0.0, -3.0, 0.0, -3.0, -3.0, 0.5, 11.0, 2.0]];
        for q in points {
            let (_, grad) = logp_grad(&q, &inputs.returns);
            for i in 0..D {
                let h = 1e-6;
                let shifted = |by: f64| {
                    let mut at = q;
                    at[i] += by;
                    logp_grad(&at, &inputs.returns).0
                };
                let difference = (shifted(h) - shifted(-h)) / (2.0 * h);
                assert!((difference - grad[i]).abs() <= 1e-4 * (1.0 + grad[i].abs()), "{i}: {difference} {}", grad[i]);
            }
        }
    }
}
