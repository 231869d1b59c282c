//! Log-densities with their gradients, as programs: q and captured data to the log-density and its gradient.
#![allow(dead_code)]

use nx_vulkan_engine::DType;
use nx_vulkan_engine::program::{Program, Reduction, Unary};

use crate::maker::Maker;

/// Independent normals; captures their precisions.
pub fn normals(dtype: DType, d: u64) -> Program {
    let mut m = Maker::default();
    let (q, precision) = (m.input(dtype, &[d]), m.input(dtype, &[d]));
    let pull = m.mul(precision, q);
    let gradient = m.unary(Unary::Negate, pull);
    let terms = m.mul(pull, q);
    let sum = m.sum(terms, &[0]);
    let log_density = m.times(sum, -0.5);
    m.done(&[log_density, gradient])
}

pub const SCHOOL_EFFECTS: [f64; 8] = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0];
pub const SCHOOL_ERRORS: [f64; 8] = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0];

/// Eight schools, not centred: mu, log tau and eight standard effects; captures effects and their errors.
pub fn eight_schools(dtype: DType) -> Program {
    let mut m = Maker::default();
    let q = m.input(dtype, &[10]);
    let (y, sigma) = (m.input(dtype, &[8]), m.input(dtype, &[8]));
    let (mu, log_tau, t) = (m.at(q, 0), m.at(q, 1), m.slice(q, 2, 8));
    let tau = m.unary(Unary::Exp, log_tau);
    let effect = m.mul(tau, t);
    let theta = m.add(mu, effect);
    let error = m.sub(y, theta);
    let z = m.div(error, sigma);
    let r = m.div(z, sigma);
    // mu ~ normal(0, 5)
    let mu_mu = m.mul(mu, mu);
    let prior_mu = m.times(mu_mu, -1.0 / 50.0);
    // tau ~ half-Cauchy(5), with the derivative of exp
    let ratio = m.times(tau, 0.2);
    let square = m.mul(ratio, ratio);
    let log1p = m.unary(Unary::Log1p, square);
    let prior_tau = m.sub(log_tau, log1p);
    let (tt, zz) = (m.mul(t, t), m.mul(z, z));
    let both = m.add(tt, zz);
    let squares = m.sum(both, &[0]);
    let likelihood = m.times(squares, -0.5);
    let priors = m.add(prior_mu, prior_tau);
    let log_density = m.add(priors, likelihood);

    let sum_r = m.sum(r, &[0]);
    let pull = m.times(mu, -1.0 / 25.0);
    let d_mu = m.add(pull, sum_r);
    let more = m.plus(square, 1.0);
    let share = m.div(square, more);
    let minus = m.times(share, -2.0);
    let base = m.plus(minus, 1.0);
    let rt = m.mul(r, t);
    let sum_rt = m.sum(rt, &[0]);
    let slope = m.mul(tau, sum_rt);
    let d_log_tau = m.add(base, slope);
    let of_data = m.mul(tau, r);
    let d_t = m.sub(of_data, t);
    let gradient = m.concatenate(&[d_mu, d_log_tau, d_t]);
    m.done(&[log_density, gradient])
}

/// A mixture of three normals, of which the last has mean 0: two means, three log sds, two logits of weights, and one
/// parameter that has only a prior. All have standard normal priors. Captures `n` returns.
pub fn regime(dtype: DType, n: u64) -> Program {
    let mut m = Maker::default();
    let q = m.input(dtype, &[8]);
    let x = m.input(dtype, &[n]);
    let zero = m.number(dtype, 0.0);
    let (m0, m1) = (m.at(q, 0), m.at(q, 1));
    let means = m.concatenate(&[m0, m1, zero]);
    let log_sds = m.slice(q, 2, 3);
    let (b0, b1) = (m.at(q, 5), m.at(q, 6));
    let logits = m.concatenate(&[b0, b1, zero]);
    let exps = m.unary(Unary::Exp, logits);
    let total = m.sum(exps, &[0]);
    let weights = m.div(exps, total);
    let log_total = m.unary(Unary::Log, total);
    let log_weights = m.sub(logits, log_total);

    let inverse = m.unary(Unary::Negate, log_sds);
    let inverse = m.unary(Unary::Exp, inverse);
    let column = m.reshape(x, &[n, 1]);
    let error = m.sub(column, means);
    let z = m.mul(error, inverse);
    let zz = m.mul(z, z);
    let half = m.times(zz, -0.5);
    let scale = m.sub(log_weights, log_sds);
    let a = m.add(half, scale);
    let most = m.reduce(Reduction::Max, a, &[1]);
    let most_column = m.reshape(most, &[n, 1]);
    let apart = m.sub(a, most_column);
    let e = m.unary(Unary::Exp, apart);
    let es = m.sum(e, &[1]);
    let log = m.unary(Unary::Log, es);
    let each = m.add(log, most);
    let likelihood = m.sum(each, &[0]);
    let es_column = m.reshape(es, &[n, 1]);
    let r = m.div(e, es_column);

    let qq = m.mul(q, q);
    let squares = m.sum(qq, &[0]);
    let prior = m.times(squares, -0.5);
    let log_density = m.add(likelihood, prior);

    let rz = m.mul(r, z);
    let d_means = m.sum(rz, &[0]);
    let d_means = m.mul(d_means, inverse);
    let more = m.plus(zz, -1.0);
    let rm = m.mul(r, more);
    let d_log_sds = m.sum(rm, &[0]);
    let rw = m.sub(r, weights);
    let d_logits = m.sum(rw, &[0]);
    let (d0, d1) = (m.slice(d_means, 0, 2), m.slice(d_logits, 0, 2));
    let of_data = m.concatenate(&[d0, d_log_sds, d1, zero]);
    let gradient = m.sub(of_data, q);
    m.done(&[log_density, gradient])
}
