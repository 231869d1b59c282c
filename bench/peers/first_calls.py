"""First calls of long programs in JAX, beside first_calls.exs: python3 bench/peers/first_calls.py ROW SIZE

ROW is gradient, put_slice or slices, SIZE how many steps or slices. Prints a row of a Markdown table: the first call with tracing
and compilation, tracing alone, a later call.
"""

import sys
import time

import jax
import jax.numpy as jnp


def gradient(n):
    def steps(x):
        for i in range(1, n + 1):
            x = jnp.sin(x * (1.0 - i / 100_000)) + x
        return x.sum()

    return jax.grad(steps), 16


def put_slice(n):
    def puts(x):
        for i in range(n):
            x = jax.lax.dynamic_update_slice(x, jnp.array([i + 1.0]), [i])
        return x

    return puts, n


def slices(n):
    def total(x):
        result = x[0:1]
        for i in range(1, n):
            result = jnp.sin(x[i : i + 1]) + result
        return result

    return total, n


def main(row, size):
    function, length = {"gradient": gradient, "put_slice": put_slice, "slices": slices}[row](int(size))
    x = jnp.arange(length, dtype=jnp.float32) / length
    (x + 1).block_until_ready()
    start = time.perf_counter()
    jax.make_jaxpr(function)(x)
    times = [time.perf_counter() - start]
    jitted = jax.jit(function)
    for _ in range(2):
        start = time.perf_counter()
        jitted(x).block_until_ready()
        times.append(time.perf_counter() - start)
    trace, first, later = (f"{1000 * t:.1f} ms" for t in times)
    print(f"| {row} {size} | {first} | {trace} | {later} |")


main(*sys.argv[1:])
