"""Measures with NumPyro what `mix run bench/nuts.exs` measures, on the same machine, and prints a Markdown table.

    python3 bench/peers/nuts.py [f64|f32] [CHAINS,..] [DRAWS]

Chains are vectorized: all take as many steps as the one with the longest trajectory. The warm-up and compilation are not timed.
"""
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from scipy.stats import norm, rankdata

ARGUMENTS = sys.argv[1:]
TYPE = ARGUMENTS.pop(0) if ARGUMENTS and ARGUMENTS[0] in ("f32", "f64") else "f64"
# posteriors.py computes in f64 unless it is told otherwise afterwards.
import posteriors  # noqa: E402

jax.config.update("jax_enable_x64", TYPE == "f64")

MODELS = {
    "eight_schools": (posteriors.eight_schools, 10, posteriors.schools_quantities, None),
    "regime": (posteriors.regime, 8, posteriors.regime_quantities, posteriors.REGIME_START),
}


def bulk(values):
    """Of the rank-normalised draws, which are split in halves by the estimate."""
    ranks = rankdata(values.reshape(-1)).reshape(values.shape)
    scores = norm.ppf((ranks - 0.375) / (values.size + 0.25))
    half = values.shape[1] // 2
    return effective_sample_size(np.concatenate([scores[:, :half], scores[:, -half:]]))


def row(name, count, draws):
    log_density, d, quantities, start = MODELS[name]
    draws, warmup = (max(draws // 10, 10), 300) if count > 100 else (draws, draws)
    kernel = NUTS(potential_fn=lambda q: -log_density(q), target_accept_prob=0.9)
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, num_chains=count, chain_method="vectorized", progress_bar=False)
    init = np.random.default_rng(1).uniform(-2, 2, size=(count, d)) if start is None else np.tile(start, (count, 1))
    init = jnp.asarray(init) if count > 1 else jnp.asarray(init[0])
    mcmc.warmup(jax.random.PRNGKey(1), init_params=init, extra_fields=("num_steps",), collect_warmup=False)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
    mcmc.post_warmup_state = mcmc.last_state
    begin = time.perf_counter()
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
    jax.block_until_ready(mcmc.last_state)
    seconds = time.perf_counter() - begin
    q = np.asarray(mcmc.get_samples(group_by_chain=True))
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    effective = min(bulk(v) for v in quantities(q).values())
    one = f"{seconds * 1e6 / steps.sum():.2f}" if count == 1 else ""
    print(
        f"| {name} | {count} | {one} | {steps.mean():.2f} | {seconds * 1e3 / draws:.2f} | {count * draws / seconds:.0f} "
        f"| {effective / seconds:.0f} |",
        flush=True,
    )


def main():
    counts = [int(c) for c in ARGUMENTS[0].split(",")] if ARGUMENTS else [1, 16, 1024]
    draws = int(ARGUMENTS[1]) if len(ARGUMENTS) > 1 else 1000
    print(f"{jax.devices()[0]}, NumPyro {numpyro.__version__}, JAX {jax.__version__}; {TYPE}\n")
    print("| posterior | chains | us per leapfrog, one chain | leapfrogs per draw | ms per draw of all chains | draws per second | effective draws per second |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name in MODELS:
        for count in counts:
            row(name, count, draws)


if __name__ == "__main__":
    main()
