//! What the samples say about the posterior, beside posteriordb's reference.

use super::diagnostics::{ess_bulk, ess_mean, mean, median, rhat, sd};
use super::model::D;
use super::sampler::Samples;

/// A quantity of the posterior and what it is known to be.
struct Quantity {
    name: &'static str,
    of: fn(&[f64]) -> f64,
    mean: f64,
    sd: f64,
    median: f64,
}

/// Source: posteriordb, reference draws of `eight_schools-eight_schools_noncentered`, rounded to what their Monte Carlo
/// error supports.
const REFERENCE: [Quantity; 2] = [
    Quantity { name: "mu", of: |q| q[0], mean: 4.4, sd: 3.3, median: 4.4 },
    Quantity { name: "tau", of: |q| q[1].exp(), mean: 3.6, sd: 3.2, median: 2.7 },
];

/// How far mean, sd and median may be from the reference, whose own rounding is 0.05: four Monte Carlo errors of the
/// mean and this.
const TOLERANCE: f64 = 0.15;
/// Largest R-hat at which chains count as converged (Vehtari et al. 2021).
const RHAT_LIMIT: f64 = 1.01;

/// The lines of a table, the largest R-hat, and what is wrong with the samples.
pub struct Report {
    pub lines: Vec<String>,
    pub rhat: f64,
    pub faults: Vec<String>,
}

pub fn report(samples: &Samples) -> Report {
    let mut report = Report { lines: Vec::new(), rhat: 1.0, faults: Vec::new() };
    report.lines.push("             mean      sd  median   R-hat  ESS bulk    reference: mean   sd  median".to_owned());
    for quantity in REFERENCE {
        let chains = samples.map(D, quantity.of);
        let all = chains.concat();
        let found = (mean(&all), sd(&all), median(&all));
        let convergence = rhat(&chains);
        report.lines.push(format!(
            "{:>9} {:7.3} {:7.3} {:7.3} {:7.4} {:9.0} {:18.1} {:5.1} {:6.1}",
            quantity.name,
            found.0,
            found.1,
            found.2,
            convergence,
            ess_bulk(&chains),
            quantity.mean,
            quantity.sd,
            quantity.median
        ));
        let allowed = TOLERANCE + 4.0 * found.1 / ess_mean(&chains).sqrt();
        let pairs =
            [("mean", found.0, quantity.mean), ("sd", found.1, quantity.sd), ("median", found.2, quantity.median)];
        for (what, ours, reference) in pairs {
            // Written so that NaN is a fault.
            let agrees = (ours - reference).abs() <= allowed;
            if !agrees {
                report
                    .faults
                    .push(format!("{what} of {} is {ours:.3}, not {reference} +- {allowed:.3}", quantity.name));
            }
        }
        report.rhat = if convergence.is_nan() { f64::INFINITY } else { report.rhat.max(convergence) };
    }
    // The effects of the schools converge last where the posterior is hard.
    for school in 0..D - 2 {
        let chains = samples.map(D, |q| q[0] + q[1].exp() * q[2 + school]);
        let convergence = rhat(&chains);
        report.rhat = if convergence.is_nan() { f64::INFINITY } else { report.rhat.max(convergence) };
        let all = chains.concat();
        report.lines.push(format!(
            " theta[{school}] {:7.3} {:7.3} {:7.3} {:7.4} {:9.0}",
            mean(&all),
            sd(&all),
            median(&all),
            convergence,
            ess_bulk(&chains)
        ));
    }
    if report.rhat > RHAT_LIMIT {
        report.faults.push(format!("R-hat is {:.4}, above {RHAT_LIMIT}", report.rhat));
    }
    report
}
