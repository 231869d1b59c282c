"""Measures with NumPyro what `mix run bench/large_posteriors.exs` measures, on the same machine, and prints a Markdown table.

    python3 bench/peers/large_posteriors.py [f32|f64] [CHAINS,..] [DRAWS] [MODEL,..]

Chains are vectorized: all take as many steps as the one with the longest trajectory. The warm-up and compilation are not timed with
the draws. Without a GPU, or with JAX_PLATFORMS=cpu, JAX takes the cores of the host.
"""
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpyro.infer import MCMC, NUTS

from nuts import bulk

ARGUMENTS = sys.argv[1:]
TYPE = ARGUMENTS.pop(0) if ARGUMENTS and ARGUMENTS[0] in ("f32", "f64") else "f32"
jax.config.update("jax_enable_x64", TYPE == "f64")
FLOAT = np.float64 if TYPE == "f64" else np.float32


def uniforms(seed, shape):
    """Between 0 and 1, exclusively, of 23 bits: a hash of the place and the seed."""
    with np.errstate(over="ignore"):
        x = np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(seed * 0x85EBCA6B % 2**32)
        for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            x = (x ^ (x >> np.uint32(bits))) * np.uint32(factor)
    return (((x >> np.uint32(9)).astype(FLOAT) + FLOAT(0.5)) * FLOAT(2**-23)).reshape(shape)


def normals(seed, shape):
    radius = np.sqrt(-2 * np.log(uniforms(2 * seed, shape)))
    return (radius * np.cos(2 * np.pi * uniforms(2 * seed + 1, shape))).astype(FLOAT)


def half_squares(x):
    return 0.5 * jnp.sum(x * x)


def logistic():
    n, p = 100_000, 50
    x = normals(1, (n, p))
    beta = (0.2 * np.cos(np.arange(p))).astype(FLOAT)
    y = (uniforms(2, (n,)) < 1 / (1 + np.exp(-x @ beta))).astype(FLOAT)
    x, y = jnp.asarray(x), jnp.asarray(y)

    def log_density(beta):
        eta = jnp.dot(x, beta, precision="highest")
        return jnp.sum(y * eta - jax.nn.softplus(eta)) - half_squares(beta)

    return log_density, p, lambda q: {f"beta[{j}]": q[..., j] for j in (0, 1, p - 1)}


def hierarchical():
    groups, each = 10_000, 10
    y = jnp.asarray(1.0 + 0.5 * normals(3, (groups, 1)) + 0.8 * normals(4, (groups, each)), dtype=FLOAT)

    def log_density(q):
        mu, log_tau, log_sigma, z = q[0], q[1], q[2], q[3:]
        residual = (y - (mu + jnp.exp(log_tau) * z)[:, None]) * jnp.exp(-log_sigma)
        return -(half_squares(residual) + groups * each * log_sigma + half_squares(q))

    def quantities(q):
        tau = np.exp(q[..., 1])
        return {"mu": q[..., 0], "tau": tau, "sigma": np.exp(q[..., 2]), "theta[0]": q[..., 0] + tau * q[..., 3]}

    return log_density, 3 + groups, quantities


def volatility():
    n = 2000
    walk = np.cumsum((0.05 * normals(5, (n,))).astype(FLOAT))
    y = jnp.asarray(np.exp(walk - 2) * normals(6, (n,)), dtype=FLOAT)

    def log_density(q):
        log_sigma, log_nu, level, z = q[0], q[1], q[2], q[3:]
        h = level + jnp.exp(log_sigma) * jnp.cumsum(z)
        nu = jnp.exp(log_nu)
        tails = jnp.log1p((y * jnp.exp(-h)) ** 2 / nu)
        shared = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * log_nu
        priors = half_squares(log_sigma + 3) + half_squares(log_nu - 2.3) + half_squares(level + 2)
        return n * shared - jnp.sum(h + (nu + 1) / 2 * tails) - half_squares(z) - priors

    return log_density, 3 + n, lambda q: {"sigma": np.exp(q[..., 0]), "log_nu": q[..., 1], "level": q[..., 2], "z[0]": q[..., 3]}


def gaussian_process():
    n = 500
    x = np.arange(n) * (10 / n)
    y = jnp.asarray(np.sin(x) + 0.3 * normals(7, (n,)), dtype=FLOAT)
    squares = jnp.asarray((x[:, None] - x) ** 2, dtype=FLOAT)

    def log_density(q):
        kernel = jnp.exp(2 * q[0]) * jnp.exp(-0.5 * jnp.exp(-2 * q[1]) * squares)
        factor = jnp.linalg.cholesky(kernel + jnp.exp(2 * q[2]) * jnp.eye(n, dtype=FLOAT))
        solved = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return -(half_squares(solved) + jnp.sum(jnp.log(jnp.diagonal(factor))) + half_squares(q))

    return log_density, 3, lambda q: dict(zip(("log_scale", "log_length", "log_noise"), np.moveaxis(q, -1, 0)))


MODELS = {f.__name__: f for f in (logistic, hierarchical, volatility, gaussian_process)}


def row(name, count, draws):
    log_density, d, quantities = MODELS[name]()
    kernel = NUTS(potential_fn=lambda q: -log_density(q), target_accept_prob=0.8)
    mcmc = MCMC(kernel, num_warmup=draws, num_samples=draws, num_chains=count, chain_method="vectorized", progress_bar=False)
    init = jnp.asarray(np.random.default_rng(1).uniform(-2, 2, size=(count, d)), dtype=FLOAT)
    begin = time.perf_counter()
    mcmc.warmup(jax.random.PRNGKey(1), init_params=init if count > 1 else init[0], extra_fields=("num_steps",), collect_warmup=False)
    jax.block_until_ready(mcmc.last_state)
    warm = time.perf_counter() - begin
    # Once for compilation, once for the time.
    for _ in range(2):
        mcmc.post_warmup_state = mcmc.last_state
        begin = time.perf_counter()
        mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
        jax.block_until_ready(mcmc.last_state)
        seconds = time.perf_counter() - begin
    q = np.asarray(mcmc.get_samples(group_by_chain=True))
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    found = quantities(q)
    effective = min(bulk(v) for v in found.values())
    means = ", ".join(f"{k} {v.mean():.4f} ({v.std():.4f})" for k, v in sorted(found.items()))
    print(
        f"| {name} | {count} | {steps.mean():.1f} | {seconds * 1e3 / draws:.3f} | {steps.sum() / seconds:.0f} "
        f"| {seconds * 1e6 / steps.max(axis=0).sum():.1f} | {effective / seconds:.1f} | {warm:.1f} | {means} |",
        flush=True,
    )


def main():
    counts = [int(c) for c in ARGUMENTS[0].split(",")] if ARGUMENTS else [4, 32]
    draws = int(ARGUMENTS[1]) if len(ARGUMENTS) > 1 else 300
    names = ARGUMENTS[2].split(",") if len(ARGUMENTS) > 2 else list(MODELS)
    print(f"{jax.devices()[0]}, JAX {jax.__version__}; {TYPE}\n")
    print(
        "| posterior | chains | leapfrogs per draw | ms per draw of all chains | leapfrogs per second "
        "| us per leapfrog of the longest | effective draws per second | s of warm-up, first call | means (deviations) |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|", flush=True)
    for name in names:
        for count in counts:
            row(name, count, draws)


if __name__ == "__main__":
    main()
