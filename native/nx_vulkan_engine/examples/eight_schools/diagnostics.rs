//! Convergence diagnostics of several chains: rank-normalised split R-hat and bulk effective sample size.
//!
//! Source: Vehtari, Gelman, Simpson, Carpenter, Bürkner, "Rank-normalization, folding, and localization: an improved
//! R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2), 2021. Every chain has the same number of draws,
//! at least 4.

/// The larger of the R-hats of the rank-normalised and of the folded rank-normalised draws.
pub fn rhat(chains: &[Vec<f64>]) -> f64 {
    let halves = split(chains);
    let centre = median(&halves.concat());
    let folded: Vec<Vec<f64>> = halves.iter().map(|c| c.iter().map(|x| (x - centre).abs()).collect()).collect();
    let bulk = split_rhat(&rank_normalise(&halves));
    let tail = split_rhat(&rank_normalise(&folded));
    if bulk.is_nan() || tail.is_nan() { f64::NAN } else { bulk.max(tail) }
}

/// Effective sample size of the rank-normalised draws, by Geyer's initial monotone sequence.
pub fn ess_bulk(chains: &[Vec<f64>]) -> f64 {
    ess(&rank_normalise(&split(chains)))
}

/// Effective sample size for the mean of the draws themselves.
pub fn ess_mean(chains: &[Vec<f64>]) -> f64 {
    ess(&split(chains))
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sample standard deviation.
pub fn sd(values: &[f64]) -> f64 {
    variance(values).sqrt()
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { 0.5 * (sorted[middle - 1] + sorted[middle]) }
}

fn variance(values: &[f64]) -> f64 {
    let centre = mean(values);
    values.iter().map(|x| (x - centre) * (x - centre)).sum::<f64>() / (values.len() as f64 - 1.0)
}

/// First and second halves as chains of their own; the middle draw of an odd number is left out.
fn split(chains: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let halves = |chain: &Vec<f64>| {
        let half = chain.len() / 2;
        [chain[..half].to_vec(), chain[chain.len() - half..].to_vec()]
    };
    chains.iter().flat_map(halves).collect()
}

/// Replaces draws by the normal quantiles of their ranks among all chains; ties share their average rank.
fn rank_normalise(chains: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let all = chains.concat();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&a, &b| all[a].total_cmp(&all[b]));
    let mut scores = vec![0.0; all.len()];
    let mut start = 0;
    while start < order.len() {
        let tied = order[start..].iter().take_while(|&&i| all[i] == all[order[start]]).count().max(1);
        let rank = start as f64 + 0.5 * (tied as f64 + 1.0);
        for &i in &order[start..start + tied] {
            scores[i] = normal_quantile((rank - 0.375) / (all.len() as f64 + 0.25));
        }
        start += tied;
    }
    let mut rest = scores.as_slice();
    let take = |chain: &Vec<f64>| {
        let (head, tail) = rest.split_at(chain.len());
        rest = tail;
        head.to_vec()
    };
    chains.iter().map(take).collect()
}

/// Mean variance within the chains, and the estimate of the posterior's variance from within and between.
fn variances(chains: &[Vec<f64>]) -> (f64, f64) {
    let n = chains[0].len() as f64;
    let within = mean(&chains.iter().map(|c| variance(c)).collect::<Vec<_>>());
    let between = variance(&chains.iter().map(|c| mean(c)).collect::<Vec<_>>());
    (within, within * (n - 1.0) / n + between)
}

fn split_rhat(chains: &[Vec<f64>]) -> f64 {
    let (within, total) = variances(chains);
    (total / within).sqrt()
}

fn ess(chains: &[Vec<f64>]) -> f64 {
    let n = chains[0].len();
    let draws = (n * chains.len()) as f64;
    let (within, total) = variances(chains);
    let means: Vec<f64> = chains.iter().map(|c| mean(c)).collect();
    let autocorrelation = |lag: usize| {
        let of_chain = |(chain, centre): (&Vec<f64>, &f64)| {
            let products = chain.iter().zip(&chain[lag..]).map(|(a, b)| (a - centre) * (b - centre));
            products.sum::<f64>() / n as f64
        };
        let covariance = chains.iter().zip(&means).map(of_chain).sum::<f64>() / chains.len() as f64;
        1.0 - (within - covariance) / total
    };
    // Sums of neighbouring pairs are positive and falling for a reversible chain: noise starts where they are not.
    let mut time = -1.0;
    let mut last_pair = f64::INFINITY;
    let mut lag = 0;
    while lag + 1 < n {
        let even = if lag == 0 { 1.0 } else { autocorrelation(lag) };
        let pair = (even + autocorrelation(lag + 1)).min(last_pair);
        if pair.is_nan() || pair <= 0.0 {
            break;
        }
        time += 2.0 * pair;
        last_pair = pair;
        lag += 2;
    }
    // Antithetic chains can beat independent draws; the bound keeps noise from claiming without limit.
    draws / time.max(1.0 / draws.log10())
}

/// Quantile of the standard normal for 0 < p < 1, to about 1e-16. Source: Wichura, algorithm AS 241 (PPND16), 1988.
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 8] = [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ];
    const B: [f64; 8] = [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_545,
    ];
    const C: [f64; 8] = [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        7.745_450_142_783_414e-4,
    ];
    const E: [f64; 8] = [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ];
    const F: [f64; 8] = [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ];
    const G: [f64; 8] = [
        1.0,
        0.599_832_206_555_888,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ];
    let ratio = |top: &[f64; 8], bottom: &[f64; 8], x: f64| {
        let horner = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, c| sum * x + c);
        horner(top) / horner(bottom)
    };
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(&A, &B, 0.180_625 - q * q);
    }
    let r = (-p.min(1.0 - p).ln()).sqrt();
    let magnitude = if r <= 5.0 { ratio(&C, &E, r - 1.6) } else { ratio(&F, &G, r - 5.0) };
    magnitude.copysign(q)
}
