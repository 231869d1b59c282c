"""Measures with JAX what `mix run bench/jit_latency.exs` measures, on the same machine, and prints a Markdown table.

Products and convolutions are true f32 (`highest`) on both sides. "synchronous" in the table is the median of single
calls on an idle device with `block_until_ready`, "host" until they return. Arguments leave out rows whose names
contain none of them.
"""
import math
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_default_matmul_precision", "highest")

BATCHES, BATCH_S = 7, 0.3
# Calls on an idle device: so many, or what fits into this time.
ALONE_CALLS, ALONE_S = 101, 0.2
RATE, BETA1, BETA2, EPSILON = 0.001, 0.9, 0.999, 1e-8


@jax.jit
def tiny(x):
    return x * 2 + 1


@jax.jit
def add_one(x):
    return x + 1


@jax.jit
def chain(x):
    return jnp.tanh(jnp.exp(x * 0.5 + 1) * x - 0.1)


def mlp(images, parameters):
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = jnp.maximum(images @ w1 + b1, 0)
    hidden = jnp.maximum(hidden @ w2 + b2, 0)
    return hidden @ w3 + b3


def cnn(images, parameters):
    k1, c1, k2, c2, w1, b1, w2, b2 = parameters

    def layer(x, kernel, bias):
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME") + bias.reshape(1, -1, 1, 1)
        return jax.lax.reduce_window(jnp.maximum(x, 0), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    x = layer(layer(images, k1, c1), k2, c2).reshape(images.shape[0], 64 * 7 * 7)
    return jnp.maximum(x @ w1 + b1, 0) @ w2 + b2


def cross_entropy(logits, labels):
    shifted = logits - jax.lax.stop_gradient(logits.max(axis=1, keepdims=True))
    return jnp.mean(jnp.log(jnp.exp(shifted).sum(axis=1)) - (shifted * labels).sum(axis=1))


def trainer(model):
    def step(state, images, labels):
        parameters, means, squares, t = state
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(model(images, p), labels))(parameters)
        t = t + 1
        scale1, scale2 = 1 - BETA1**t, 1 - BETA2**t
        means = tuple(BETA1 * m + (1 - BETA1) * g for m, g in zip(means, gradients))
        squares = tuple(BETA2 * s + (1 - BETA2) * g * g for s, g in zip(squares, gradients))
        parameters = tuple(
            p - RATE * (m / scale1) / (jnp.sqrt(s / scale2) + EPSILON) for p, m, s in zip(parameters, means, squares)
        )
        return loss, (parameters, means, squares, t)

    return jax.jit(step)


@jax.jit
def thousand(x):
    return jax.lax.while_loop(lambda s: s[0] < 1000, lambda s: (s[0] + 1, s[1] * 0.99 + jnp.sin(s[1]) * 0.01), (0, x))[1]


EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


@jax.jit
@jax.value_and_grad
def eight_schools(q):
    mu, log_tau, raw = q[0], q[1], q[2:10]
    tau = jnp.exp(log_tau)
    residual = (EFFECTS - (mu + tau * raw)) / ERRORS
    prior = -0.5 * (mu / 5.0) ** 2 - jnp.log1p((tau / 5.0) ** 2) + log_tau - 0.5 * jnp.sum(raw * raw)
    return prior - 0.5 * jnp.sum(residual * residual)


def norm(x, g, b):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * g + b


def block(parameters, x, heads=4):
    g1, b1, w_qkv, w_out, g2, b2, w_up, b_up, w_down, b_down = parameters
    batch, length, d = x.shape
    qkv = (norm(x, g1, b1) @ w_qkv).reshape(batch, length, 3, heads, d // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(d // heads)
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9), axis=-1)
    x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, d) @ w_out
    return x + jax.nn.gelu(norm(x, g2, b2) @ w_up + b_up, approximate=False) @ w_down + b_down


block_step = jax.jit(jax.value_and_grad(lambda parameters, x: (block(parameters, x) ** 2).mean()))


def regime_density(q, r):
    def normal(x, mu, sigma):
        return -0.5 * ((x - mu) / sigma) ** 2 - jnp.log(sigma) - 0.9189385332046728

    def half_cauchy(x, scale):
        return -0.45158270528945486 - jnp.log(scale) - jnp.log1p((x / scale) ** 2)

    trend_sigma, mr_sigma, vol_sigma, theta = jnp.exp(q[1]), jnp.exp(q[3]), jnp.exp(q[4]), jnp.exp(q[5])
    w1, w2 = jnp.exp(jnp.minimum(q[6], 10)), jnp.exp(jnp.minimum(q[7], 10))
    total = w1 + w2 + 1
    before = jnp.concatenate([jnp.zeros(1, r.dtype), r[:-1]])
    trend = normal(r, q[0], trend_sigma) + jnp.log(w1 / total)
    reverting = normal(r, before + theta * (q[2] - before), mr_sigma) + jnp.log(w2 / total)
    volatile = normal(r, 0.0, vol_sigma) + jnp.log(1 / total)
    likelihood = jax.scipy.special.logsumexp(jnp.stack([trend, reverting, volatile]), axis=0).sum()
    priors = normal(q[0], 0.001, 0.01) + normal(q[2], 0.001, 0.01) + normal(q[6], 0, 1) + normal(q[7], 0, 1)
    scales = half_cauchy(trend_sigma, 0.02) + half_cauchy(mr_sigma, 0.02) + half_cauchy(vol_sigma, 0.05)
    return likelihood + priors + scales + half_cauchy(theta, 0.5) + q[1] + q[3] + q[4] + q[5]


RETURNS = np.array([((i * 37 % 64) / 64 - 0.5) * 0.02 for i in range(1, 201)], np.float32)
regime_step = jax.jit(jax.value_and_grad(lambda q: regime_density(q, RETURNS)))


@jax.jit
def regression(x, y):
    def step(state):
        w, _, i = state
        g = (jax.nn.sigmoid(x @ w) - y) @ x / x.shape[0]
        return w - 2.0 * g, jnp.sqrt((g * g).sum()), i + 1

    start = (jnp.zeros(x.shape[1], x.dtype), jnp.ones((), x.dtype), 0)
    w, _, i = jax.lax.while_loop(lambda s: (s[1] > 1e-3) & (s[2] < 500), step, start)
    return w, i


@jax.jit
def k_means(x, centres):
    def step(state):
        centres, _, i = state
        nearest = jnp.argmin((centres * centres).sum(axis=1) - 2 * x @ centres.T, axis=1)
        members = (nearest[:, None] == jnp.arange(centres.shape[0])[None, :]).astype(x.dtype)
        following = members.T @ x / jnp.maximum(members.sum(axis=0), 1)[:, None]
        return following, ((following - centres) ** 2).sum(), i + 1

    return jax.lax.while_loop(lambda s: (s[1] > 1e-8) & (s[2] < 20), step, (centres, jnp.ones((), x.dtype), 0))[0]


@jax.jit
def pca(x):
    return jnp.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:8]


@jax.jit
def softmax(x):
    e = jnp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@jax.jit
def layer_norm(x):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)


def vector(n):
    return jnp.arange(n, dtype=jnp.float32) / (n * 10)


def uniform(shape, scale=1.0):
    return jax.random.uniform(jax.random.key(math.prod(shape)), shape, jnp.float32, -scale, scale)


def labels(batch):
    return (jnp.arange(batch)[:, None] % 10 == jnp.arange(10)[None, :]).astype(jnp.float32)


def state(parameters):
    zeros = tuple(jnp.zeros_like(p) for p in parameters)
    return tuple(parameters), zeros, zeros, jnp.zeros((), parameters[0].dtype)


def train(model, parameters, images):
    step, target = trainer(model), labels(images.shape[0])
    return state(parameters), lambda s: step(s, images, target), lambda r: r[1], "last"


def mlp_row(sizes, batch):
    parameters = []
    for n, m in zip(sizes, sizes[1:]):
        parameters += [uniform((n, m), math.sqrt(6 / (n + m))), jnp.zeros((m,), jnp.float32)]
    return train(mlp, parameters, uniform((batch, sizes[0])))


def cnn_row(batch):
    shapes = [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (3136, 128), (128,), (128, 10), (10,)]
    return train(cnn, [uniform(shape, 0.05) for shape in shapes], uniform((batch, 1, 28, 28)))


def transformer_row(batch, length, d):
    shapes = [(d,), (d,), (d, 3 * d), (d, d), (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    x = uniform((batch, length, d))
    parameters = tuple(uniform(shape, 1 / math.sqrt(d)) for shape in shapes)
    return parameters, lambda p: block_step(p, x), lambda r: r[1], "last"


def regime_row(read):
    q = jnp.array([0.01, -3.0, 0.02, -3.0, -3.0, -3.0, 0.05, 0.05], jnp.float32)
    return q, regime_step, lambda r: r[1], read


def regression_row(n, features):
    x = uniform((n, features))
    y = (x @ jnp.sin(jnp.arange(features)) > 0.7 * jnp.sin(jnp.arange(n))).astype(jnp.float32)
    return x, lambda x: regression(x, y), lambda r: x, "each"


def k_means_row(n, features, k):
    x = uniform((n, features))
    return x[:k], lambda centres: k_means(x, centres), lambda r: x[:k], "each"


def pca_row(n, features):
    x = uniform((n, features))
    return x, pca, lambda r: x, "each"


def thousand_calls(x):
    for _ in range(1000):
        x = tiny(x)
    return x


def same(x):
    return x


def repeated(shape, step):
    """Each call reads the same argument."""
    x = uniform(shape)
    return x, step, lambda r: x, "last"


ROWS = [
    ("tiny call, synchronous", lambda: (vector(16), tiny, same, "each")),
    ("tiny call, pipelined", lambda: (vector(16), tiny, same, "last")),
    ("1,000 tiny calls one after the other, the last read", lambda: (vector(16), thousand_calls, same, "each")),
    ("value_and_grad of eight schools, pipelined", lambda: (vector(10), eight_schools, lambda r: r[1], "last")),
    ("value_and_grad of eight schools, synchronous", lambda: (vector(10), eight_schools, lambda r: r[1], "each")),
    ("while of 1,000 steps of 16 f32", lambda: (vector(16), thousand, same, "each")),
    ("MLP step 784-512-256-10, batch 128, Adam", lambda: mlp_row([784, 512, 256, 10], 128)),
    ("MLP step 784-2048-2048-10, batch 1024, Adam", lambda: mlp_row([784, 2048, 2048, 10], 1024)),
    ("CNN step, 2 conv, 2 pool, 2 dense, batch 128, Adam", lambda: cnn_row(128)),
    ("transformer block and its gradients, 8 x 128 x 256, 4 heads", lambda: transformer_row(8, 128, 256)),
    ("value_and_grad of regimes, 200 returns, pipelined", lambda: regime_row("last")),
    ("value_and_grad of regimes, 200 returns, synchronous", lambda: regime_row("each")),
    ("logistic regression of 1,000 x 32 by gradient descent in a while", lambda: regression_row(1_000, 32)),
    ("logistic regression of 100,000 x 32 by gradient descent in a while", lambda: regression_row(100_000, 32)),
    ("k-means, 20 steps of 20,000 x 16, 8 centres", lambda: k_means_row(20_000, 16, 8)),
    ("k-means of Scholar, at most 20 steps of 2,000 x 16, 8 centres", lambda: k_means_row(2_000, 16, 8)),
    ("PCA of Scholar, 2,000 x 32 to 8", lambda: pca_row(2_000, 32)),
    ("softmax of rows, 4096 x 4096", lambda: (uniform((4096, 4096)), softmax, same, "last")),
    ("layer norm of rows, 4096 x 4096", lambda: (uniform((4096, 4096)), layer_norm, same, "last")),
    ("softmax of rows, 16384 x 16384", lambda: repeated((16_384, 16_384), softmax)),
    ("x + 1, 8192 x 8192", lambda: repeated((8192, 8192), add_one)),
    ("tanh(exp(x * 0.5 + 1) * x - 0.1), 8192 x 8192", lambda: repeated((8192, 8192), chain)),
]


def wait(result):
    np.asarray(jax.tree.leaves(result)[0])


def run(argument, step, following, read, calls):
    for _ in range(calls):
        result = step(argument)
        if read == "each":
            wait(result)
        argument = following(result)
    if read == "last":
        jax.block_until_ready(result)
    return argument


def alone(argument, step):
    """Medians in us until a call on an idle device returns, and until its result is there."""
    hosts, waits = [], []
    stop = time.perf_counter() + ALONE_S
    while not hosts or (len(hosts) < ALONE_CALLS and time.perf_counter() < stop):
        start = time.perf_counter()
        result = step(argument)
        hosts.append((time.perf_counter() - start) * 1e6)
        jax.block_until_ready(result)
        waits.append((time.perf_counter() - start) * 1e6)
    return statistics.median(hosts), statistics.median(waits)


def show(us):
    return f"{us:.1f} us" if us < 1000 else f"{us * 1e-3:.2f} ms"


def main():
    print(f"{jax.devices()[0]}, JAX {jax.__version__}\n\n| | first call | median | synchronous | host |\n|---|---:|---:|---:|---:|", flush=True)
    wanted = sys.argv[1:] or [""]
    for name, setup in ROWS:
        if not any(part in name for part in wanted):
            continue
        argument, step, following, read = setup()
        start = time.perf_counter()
        result = step(argument)
        wait(result)
        first = time.perf_counter() - start
        argument = run(following(result), step, following, read, 2)
        start = time.perf_counter()
        argument = run(argument, step, following, read, 2)
        once = (time.perf_counter() - start) / 2
        calls = min(max(int(BATCH_S / max(once, 1e-6)), 1), 20_000)
        times = []
        for _ in range(BATCHES):
            start = time.perf_counter()
            argument = run(argument, step, following, read, calls)
            times.append((time.perf_counter() - start) * 1e6 / calls)
        host, synchronous = alone(argument, step)
        columns = [first * 1e6, statistics.median(times), synchronous, host]
        print(f"| {name} | {' | '.join(map(show, columns))} |", flush=True)


if __name__ == "__main__":
    main()
