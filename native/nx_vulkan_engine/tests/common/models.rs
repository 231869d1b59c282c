//! Log-densities with their gradients, as programs: q and captured data to the log-density and its gradient.
#![allow(dead_code)]

use nx_vulkan_engine::DType;
use nx_vulkan_engine::program::{Binary, Builder, Program, Reduction, Unary};

/// Independent normals; captures their precisions.
pub fn normals(dtype: DType, d: u64) -> Program {
    let m = Builder::new();
    let (q, precision) = (m.input(dtype, &[d]), m.input(dtype, &[d]));
    let pull = m.multiply(precision, q);
    let gradient = m.unary(Unary::Negate, pull);
    let terms = m.multiply(pull, q);
    let sum = m.sum(terms, &[0]);
    let log_density = m.multiply(sum, -0.5);
    m.finish(&[log_density, gradient]).unwrap()
}

pub const SCHOOL_EFFECTS: [f64; 8] = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0];
pub const SCHOOL_ERRORS: [f64; 8] = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0];

/// Eight schools, not centred: mu, log tau and eight standard effects; captures effects and their errors.
pub fn eight_schools(dtype: DType) -> Program {
    let m = Builder::new();
    let q = m.input(dtype, &[10]);
    let (y, sigma) = (m.input(dtype, &[8]), m.input(dtype, &[8]));
    let (mu, log_tau, t) = (m.at(q, 0), m.at(q, 1), m.slice(q, &[2], &[8]));
    let tau = m.unary(Unary::Exp, log_tau);
    let effect = m.multiply(tau, t);
    let theta = m.add(mu, effect);
    let error = m.subtract(y, theta);
    let z = m.divide(error, sigma);
    let r = m.divide(z, sigma);
    // mu ~ normal(0, 5)
    let mu_mu = m.multiply(mu, mu);
    let prior_mu = m.multiply(mu_mu, -1.0 / 50.0);
    // tau ~ half-Cauchy(5), with the derivative of exp
    let ratio = m.multiply(tau, 0.2);
    let square = m.multiply(ratio, ratio);
    let log1p = m.unary(Unary::Log1p, square);
    let prior_tau = m.subtract(log_tau, log1p);
    let (tt, zz) = (m.multiply(t, t), m.multiply(z, z));
    let both = m.add(tt, zz);
    let squares = m.sum(both, &[0]);
    let likelihood = m.multiply(squares, -0.5);
    let priors = m.add(prior_mu, prior_tau);
    let log_density = m.add(priors, likelihood);

    let sum_r = m.sum(r, &[0]);
    let pull = m.multiply(mu, -1.0 / 25.0);
    let d_mu = m.add(pull, sum_r);
    let more = m.add(square, 1.0);
    let share = m.divide(square, more);
    let minus = m.multiply(share, -2.0);
    let base = m.add(minus, 1.0);
    let rt = m.multiply(r, t);
    let sum_rt = m.sum(rt, &[0]);
    let slope = m.multiply(tau, sum_rt);
    let d_log_tau = m.add(base, slope);
    let of_data = m.multiply(tau, r);
    let d_t = m.subtract(of_data, t);
    let gradient = m.concatenate(&[m.reshape(d_mu, &[1]), m.reshape(d_log_tau, &[1]), d_t], 0);
    m.finish(&[log_density, gradient]).unwrap()
}

/// A mixture of three normals, of which the last has mean 0: two means, three log sds, two logits of weights, and one
/// parameter that has only a prior. All have standard normal priors. Captures `n` returns.
pub fn regime(dtype: DType, n: u64) -> Program {
    let m = Builder::new();
    let q = m.input(dtype, &[8]);
    let x = m.input(dtype, &[n]);
    let zero = m.reshape(m.number(dtype, 0.0), &[1]);
    let (m0, m1) = (m.slice(q, &[0], &[1]), m.slice(q, &[1], &[1]));
    let means = m.concatenate(&[m0, m1, zero], 0);
    let log_sds = m.slice(q, &[2], &[3]);
    let (b0, b1) = (m.slice(q, &[5], &[1]), m.slice(q, &[6], &[1]));
    let logits = m.concatenate(&[b0, b1, zero], 0);
    let exps = m.unary(Unary::Exp, logits);
    let total = m.sum(exps, &[0]);
    let weights = m.divide(exps, total);
    let log_total = m.unary(Unary::Log, total);
    let log_weights = m.subtract(logits, log_total);

    let inverse = m.unary(Unary::Negate, log_sds);
    let inverse = m.unary(Unary::Exp, inverse);
    let column = m.reshape(x, &[n, 1]);
    let error = m.subtract(column, means);
    let z = m.multiply(error, inverse);
    let zz = m.multiply(z, z);
    let half = m.multiply(zz, -0.5);
    let scale = m.subtract(log_weights, log_sds);
    let a = m.add(half, scale);
    let most = m.reduce(Reduction::Max, a, &[1], false);
    let most_column = m.reshape(most, &[n, 1]);
    let apart = m.subtract(a, most_column);
    let e = m.unary(Unary::Exp, apart);
    let es = m.sum(e, &[1]);
    let log = m.unary(Unary::Log, es);
    let each = m.add(log, most);
    let likelihood = m.sum(each, &[0]);
    let es_column = m.reshape(es, &[n, 1]);
    let r = m.divide(e, es_column);

    let qq = m.multiply(q, q);
    let squares = m.sum(qq, &[0]);
    let prior = m.multiply(squares, -0.5);
    let log_density = m.add(likelihood, prior);

    let rz = m.multiply(r, z);
    let d_means = m.sum(rz, &[0]);
    let d_means = m.multiply(d_means, inverse);
    let more = m.add(zz, -1.0);
    let rm = m.multiply(r, more);
    let d_log_sds = m.sum(rm, &[0]);
    let rw = m.subtract(r, weights);
    let d_logits = m.sum(rw, &[0]);
    let (d0, d1) = (m.slice(d_means, &[0], &[2]), m.slice(d_logits, &[0], &[2]));
    let of_data = m.concatenate(&[d0, d_log_sds, d1, zero], 0);
    let gradient = m.subtract(of_data, q);
    m.finish(&[log_density, gradient]).unwrap()
}

/// A logistic regression with standard normal priors; captures `n` rows of `d` features, and labels 0 and 1.
pub fn logistic(dtype: DType, n: u64, d: u64) -> Program {
    let m = Builder::new();
    let (beta, x, y) = (m.input(dtype, &[d]), m.input(dtype, &[n, d]), m.input(dtype, &[n]));
    let eta = m.dot(x, beta);
    // log(1 + exp(eta)), without overflow.
    let minus = m.unary(Unary::Negate, m.unary(Unary::Abs, eta));
    let log1p = m.unary(Unary::Log1p, m.unary(Unary::Exp, minus));
    let softplus = m.add(m.binary(Binary::Max, eta, 0.0), log1p);
    let each = m.subtract(m.multiply(y, eta), softplus);
    let squares = m.sum(m.multiply(beta, beta), &[0]);
    let log_density = m.add(m.sum(each, &[0]), m.multiply(squares, -0.5));
    let error = m.subtract(y, m.unary(Unary::Sigmoid, eta));
    let gradient = m.subtract(m.dot_axes([x, error], [&[0], &[0]], [&[], &[]]), beta);
    m.finish(&[log_density, gradient]).unwrap()
}
