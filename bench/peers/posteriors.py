"""Writes examples/posteriors/reference.json: what is known of the posteriors that test/device/posteriors_test.exs draws from.

    pip install numpyro
    python3 bench/peers/posteriors.py examples/posteriors/reference.json

Means, standard deviations and quantiles are exact where a posterior can be integrated (funnel, hierarchical normal, random walk: numbers on
fine grids), and else come from long runs of NumPyro's NUTS in f64 on the CPU, with Monte Carlo standard errors. The means of the
eight schools are posteriordb's. Data are made by a generator of 32 bits that examples/posteriors/models.exs has, too.
"""
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

jax.config.update("jax_enable_x64", True)

CHAINS, WARMUP, DRAWS = 8, 2000, 10_000
QUANTILES = [0.05, 0.5, 0.95]


class Numbers:
    """Uniform numbers of a linear congruential generator (Numerical Recipes), and sums of twelve as normals."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (1664525 * self.state + 1013904223) % 2**32
        return self.state / 2**32

    def normal(self):
        return sum(self.uniform() for _ in range(12)) - 6


def logistic_data():
    numbers = Numbers(21)
    x, y = [], []
    for _ in range(500):
        row = [1.0] + [numbers.normal() for _ in range(20)]
        eta = sum(math.cos(j) * v for j, v in enumerate(row))
        x.append(row)
        y.append(1.0 if numbers.uniform() < 1 / (1 + math.exp(-eta)) else 0.0)
    return np.array(x), np.array(y)


def regime_data():
    """Returns of three regimes: a trend, reversion to a mean, and noise."""
    numbers = Numbers(8)
    returns, before = [], 0.0
    for _ in range(200):
        u, z = numbers.uniform(), numbers.normal()
        if u < 0.45:
            before = 0.008 + 0.002 * z
        elif u < 0.8:
            before = before + 0.7 * (-0.004 - before) + 0.001 * z
        else:
            before = 0.03 * z
        returns.append(before)
    return np.array(returns)


def groups_data():
    numbers = Numbers(3)
    errors = [0.5 + 0.05 * j for j in range(10)]
    means = [2.0 + 1.5 * numbers.normal() for _ in errors]
    return np.array([m + s * numbers.normal() for m, s in zip(means, errors)]), np.array(errors)


def walk_data():
    numbers = Numbers(5)
    x, values = 0.0, []
    for _ in range(20):
        x += 0.4 * numbers.normal()
        values.append(x + 0.5 * numbers.normal())
    return np.array(values)


def normal(x, mu, sigma):
    return -0.5 * ((x - mu) / sigma) ** 2 - jnp.log(sigma)


def half_cauchy(x, scale):
    return -jnp.log1p((x / scale) ** 2)


Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def eight_schools(q):
    mu, log_tau, t = q[0], q[1], q[2:]
    tau = jnp.exp(log_tau)
    return (normal(mu, 0, 5.0) + half_cauchy(tau, 5.0) + log_tau + normal(t, 0, 1.0).sum() + normal(Y, mu + tau * t, S).sum())


def schools_quantities(q):
    tau = np.exp(q[..., 1])
    theta = {f"theta[{j + 1}]": q[..., 0] + tau * q[..., 2 + j] for j in (0, 2, 7)}
    return {"mu": q[..., 0], "tau": tau, **theta}


X, LABELS = logistic_data()


def logistic(q):
    eta = X @ q
    return jnp.sum(LABELS * eta - jnp.logaddexp(0.0, eta)) - 0.5 * jnp.sum(q * q)


RETURNS = regime_data()
BEFORE = np.concatenate([[0.0], RETURNS[:-1]])


def regime(q):
    """Means are drawn in hundredths."""
    mu_trend, mu_mr = 0.01 * q[0], 0.01 * q[2]
    trend, reverting, volatile, theta = jnp.exp(q[1]), jnp.exp(q[3]), jnp.exp(q[4]), jnp.exp(q[5])
    w1, w2 = jnp.exp(jnp.minimum(q[6], 10)), jnp.exp(jnp.minimum(q[7], 10))
    total = w1 + w2 + 1
    parts = jnp.stack([
        normal(RETURNS, mu_trend, trend) + jnp.log(w1 / total),
        normal(RETURNS, BEFORE + theta * (mu_mr - BEFORE), reverting) + jnp.log(w2 / total),
        normal(RETURNS, 0, volatile) + jnp.log(1 / total),
    ])
    priors = (normal(mu_trend, 0.001, 0.01) + normal(mu_mr, 0.001, 0.01) + normal(q[6], 0, 1.0) + normal(q[7], 0, 1.0)
              + half_cauchy(trend, 0.02) + half_cauchy(reverting, 0.02) + half_cauchy(volatile, 0.05) + half_cauchy(theta, 0.5))
    return jax.scipy.special.logsumexp(parts, axis=0).sum() + priors + q[1] + q[3] + q[4] + q[5]


REGIME_NAMES = ["mu_trend", "log_sigma_trend", "mu_mr", "log_sigma_mr", "log_sigma_vol", "log_theta", "logit_w1", "logit_w2"]
REGIME_START = np.array([0.8, -6.0, -0.4, -7.0, -3.5, -0.4, 0.8, 0.5])


def regime_quantities(q):
    return {name: q[..., j] * (0.01 if j in (0, 2) else 1.0) for j, name in enumerate(REGIME_NAMES)}


def estimate(values):
    """Of draws [chains, draws]: an estimate and its standard error for each statistic."""
    flat = values.reshape(-1)
    out = {}

    def error(of):
        return float(of.std() / math.sqrt(effective_sample_size(of)))

    mean, sd = float(flat.mean()), float(flat.std(ddof=1))
    out["mean"] = [mean, error(values)]
    out["sd"] = [sd, error((values - mean) ** 2) / (2 * sd)]
    for p in QUANTILES:
        value = float(np.quantile(flat, p))
        e = math.sqrt(p * (1 - p) / effective_sample_size((values <= value).astype(float)))
        low, high = np.quantile(flat, [max(p - e, 0), min(p + e, 1)])
        out[f"q{p}"] = [value, float((high - low) / 2)]
    return out


def sampled(log_density, d, quantities, target=0.8, start=None):
    kernel = NUTS(potential_fn=lambda q: -log_density(q), target_accept_prob=target)
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, chain_method="vectorized", progress_bar=False)
    start = np.zeros(d) if start is None else start
    init = start + 0.1 * np.abs(start + 0.1) * np.random.default_rng(1).normal(size=(CHAINS, d))
    mcmc.run(jax.random.PRNGKey(1), init_params=jnp.asarray(init), extra_fields=("diverging",))
    q = np.asarray(mcmc.get_samples(group_by_chain=True))
    found = quantities(q)
    rhat = max(float(split_gelman_rubin(v)) for v in found.values())
    print(f"R-hat {rhat:.5f}, {int(mcmc.get_extra_fields()['diverging'].sum())} divergent", flush=True)
    if rhat > 1.01:
        raise SystemExit("the chains disagree")
    return {name: estimate(v) for name, v in found.items()}


def of_density(x, weights):
    """Of a density on a grid."""
    weights = weights / weights.sum()
    mean = float((weights * x).sum())
    below = np.cumsum(weights) - weights / 2
    out = {"mean": [mean, 0.0], "sd": [math.sqrt(float((weights * (x - mean) ** 2).sum())), 0.0]}
    for p in QUANTILES:
        out[f"q{p}"] = [float(np.interp(p, below, x)), 0.0]
    return out


def of_mixture(weights, means, sds):
    """Of normals with weights."""
    from jax.scipy.stats import norm

    weights = weights / weights.sum()
    mean = float((weights * means).sum())
    sd = math.sqrt(float((weights * (sds**2 + means**2)).sum()) - mean**2)
    grid = np.linspace(mean - 8 * sd, mean + 8 * sd, 4001)
    cdf = np.array([(weights * np.asarray(norm.cdf((g - means) / sds))).sum() for g in grid])
    out = {"mean": [mean, 0.0], "sd": [sd, 0.0]}
    for p in QUANTILES:
        out[f"q{p}"] = [float(np.interp(p, cdf, grid)), 0.0]
    return out


def funnel():
    """v ~ N(0, 3), x[j] ~ N(0, exp(v / 2)). A mean of x would tell nothing, since its standard deviation is exp(9 / 4) = 9.5 and its tails are long."""
    from jax.scipy.stats import norm

    v = np.linspace(-30, 30, 60_001)
    weights = np.exp(-0.5 * (v / 3) ** 2)
    below = lambda x: float((weights * np.asarray(norm.cdf(x * np.exp(-v / 2)))).sum() / weights.sum())

    def quantile(of, p, low, high):
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if of(middle) < p else (low, middle)
        return [(low + high) / 2, 0.0]

    # The logarithm of a normal's absolute value has the mean -(gamma + log 2) / 2 and the variance pi^2 / 8.
    log = {"mean": [-(np.euler_gamma + math.log(2)) / 2, 0.0], "sd": [math.sqrt(math.pi**2 / 8 + 9 / 4), 0.0]}
    for p in QUANTILES:
        log[f"q{p}"] = quantile(lambda l: 2 * below(math.exp(l)) - 1, p, -20, 20)
    return {
        "v": of_density(v, weights),
        "x[1]": {f"q{p}": quantile(below, p, -1000, 1000) for p in QUANTILES},
        "log |x[1]|": log,
    }


def hierarchical():
    """mu ~ N(0, 5), tau ~ half-normal(3), theta[j] ~ N(mu, tau), y[j] ~ N(theta[j], s[j]); theta integrated out."""
    y, s = groups_data()
    mu, log_tau = np.linspace(-15, 15, 3001)[:, None], np.linspace(-12, 4, 3201)[None, :]
    tau = np.exp(log_tau)
    value = -0.5 * (mu / 5) ** 2 - 0.5 * (tau / 3) ** 2 + log_tau
    for a, b in zip(y, s):
        total = np.sqrt(tau**2 + b**2)
        value = value - 0.5 * ((a - mu) / total) ** 2 - np.log(total)
    weights = np.exp(value - value.max())
    return {"mu": of_density(mu[:, 0], weights.sum(axis=1)), "log_tau": of_density(log_tau[0], weights.sum(axis=0))}


def walk():
    """sigma ~ half-normal(1), steps N(0, sigma) from 0, y[t] ~ N(x[t], 0.5); for each sigma the path is normal."""
    y = walk_data()
    n = len(y)
    sums = np.tril(np.ones((n, n)))
    log_sigma = np.linspace(-6, 2, 1601)
    values, means, sds = [], [], []
    for s in np.exp(log_sigma):
        prior = s * s * sums @ sums.T
        cov = prior + 0.25 * np.eye(n)
        solved = np.linalg.solve(cov, y)
        _, logdet = np.linalg.slogdet(cov)
        values.append(-0.5 * s * s + math.log(s) - 0.5 * y @ solved - 0.5 * logdet)
        means.append(prior @ solved)
        sds.append(np.sqrt(np.diag(prior - prior @ np.linalg.solve(cov, prior))))
    values = np.array(values)
    weights = np.exp(values - values.max())
    found = {"log_sigma": of_density(log_sigma, weights)}
    for t in (0, 9, 19):
        found[f"x[{t + 1}]"] = of_mixture(weights, np.array([m[t] for m in means]), np.array([s[t] for s in sds]))
    return found


# posteriordb, reference_posteriors/summary_statistics/mean_value/eight_schools-eight_schools_noncentered.json: mean and its error.
POSTERIORDB = {
    "mu": [4.41051833695493, 0.0330374705950917],
    "tau": [3.60205952364059, 0.0318615135640706],
    "theta[1]": [6.15050229334425, 0.0557375282295219],
    "theta[3]": [3.90590609001582, 0.0542313705632124],
    "theta[8]": [4.88399694353288, 0.0542511606560972],
}


def write(reference, path):
    """A quantity on each line, numbers with 8 digits."""

    def short(values):
        return [float(f"{v:.8g}") if abs(v) > 1e-12 else 0.0 for v in values]

    parts = []
    for name, model in reference.items():
        lines = ",\n".join(
            f"   {json.dumps(q)}: {json.dumps({k: short(v) for k, v in statistics.items()})}"
            for q, statistics in model["quantities"].items()
        )
        parts.append(f' {json.dumps(name)}: {{\n  "source": {json.dumps(model["source"])},\n  "quantities": {{\n{lines}\n  }}\n }}')
    with open(path, "w") as file:
        file.write("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    run = f"NumPyro {numpyro.__version__}, f64 on the CPU, {CHAINS} chains of {DRAWS} draws"
    reference = {}
    reference["funnel"] = {"source": "exact", "quantities": funnel()}
    reference["hierarchical"] = {"source": "quadrature", "quantities": hierarchical()}
    reference["walk"] = {"source": "quadrature", "quantities": walk()}
    found = sampled(eight_schools, 10, schools_quantities, 0.95)
    for name, mean in POSTERIORDB.items():
        print("posteriordb", name, mean, "NumPyro", found[name]["mean"])
        found[name]["mean"] = mean
    reference["eight_schools"] = {"source": f"means: posteriordb; the rest: {run}", "quantities": found}
    names = [f"beta[{j + 1}]" for j in (0, 1, 7, 20)]
    found = sampled(logistic, 21, lambda q: {name: q[..., j] for name, j in zip(names, (0, 1, 7, 20))})
    reference["logistic"] = {"source": run, "quantities": found}
    found = sampled(regime, 8, regime_quantities, 0.9, REGIME_START)
    reference["regime"] = {"source": run, "quantities": found}
    write(reference, sys.argv[1])


if __name__ == "__main__":
    main()
