"""Measures with JAX what `mix run bench/jit_latency.exs` measures, on the same machine, and prints a Markdown table.

Products and convolutions are true f32 (`highest`) on both sides. An argument leaves out rows whose name does not contain it.
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
RATE, BETA1, BETA2, EPSILON = 0.001, 0.9, 0.999, 1e-8


@jax.jit
def tiny(x):
    return x * 2 + 1


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


def train(model, parameters, images):
    step, target = trainer(model), labels(images.shape[0])
    zeros = tuple(jnp.zeros_like(p) for p in parameters)
    return (tuple(parameters), zeros, zeros, jnp.float32(0)), lambda s: step(s, images, target), lambda r: r[1], "last"


def mlp_row(sizes, batch):
    parameters = []
    for n, m in zip(sizes, sizes[1:]):
        parameters += [uniform((n, m), math.sqrt(6 / (n + m))), jnp.zeros((m,), jnp.float32)]
    return train(mlp, parameters, uniform((batch, sizes[0])))


def cnn_row(batch):
    shapes = [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (3136, 128), (128,), (128, 10), (10,)]
    return train(cnn, [uniform(shape, 0.05) for shape in shapes], uniform((batch, 1, 28, 28)))


def thousand_calls(x):
    for _ in range(1000):
        x = tiny(x)
    return x


def same(x):
    return x


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
    ("softmax of rows, 4096 x 4096", lambda: (uniform((4096, 4096)), softmax, same, "last")),
    ("layer norm of rows, 4096 x 4096", lambda: (uniform((4096, 4096)), layer_norm, same, "last")),
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
        wait(argument)
    return argument


def show(us):
    return f"{us:.1f} us" if us < 1000 else f"{us * 1e-3:.2f} ms"


def main():
    print(f"{jax.devices()[0]}, JAX {jax.__version__}\n\n| | first call | median |\n|---|---:|---:|", flush=True)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, setup in ROWS:
        if wanted not in name:
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
        print(f"| {name} | {show(first * 1e6)} | {show(statistics.median(times))} |", flush=True)


if __name__ == "__main__":
    main()
