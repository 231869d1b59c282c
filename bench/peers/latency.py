"""Measures with JAX what `mix run bench/op_latency.exs` measures, on the same machine, and prints a Markdown table."""
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np


def row(name, calls, run):
    for _ in range(3):
        run()
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    times.sort()
    median, p99 = statistics.median(times) * 1e-3, times[int(0.99 * (len(times) - 1))] * 1e-3
    print(f"| {name} | {median:.1f} us | {p99:.1f} us |", flush=True)


def main():
    print(f"{jax.devices()[0]}, JAX {jax.__version__}\n\n| | median | 99 % |\n|---|---:|---:|")
    add, total, dot = jax.jit(jnp.add), jax.jit(jnp.sum), jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    small = jnp.arange(16, dtype=jnp.float32)
    host = np.full(262144, 1.5, np.float32)
    # Copied, for on a CPU device JAX may share the memory of both.
    row("add of two 16-element f32, dispatched", 100_000, lambda: add(small, small))
    row("add of two 16-element f32, read back", 5_000, lambda: np.asarray(add(small, small)).tobytes())
    row("from host, 1 MiB", 500, lambda: jnp.array(host, copy=True).block_until_ready())
    large = jnp.array(host, copy=True)
    row("to host, 1 MiB", 500, lambda: np.array(large, copy=True))
    million = jnp.arange(1 << 20, dtype=jnp.float32)
    row("sum of 1,048,576 f32, read back", 200, lambda: np.asarray(total(million)))
    square = jnp.arange(512 * 512, dtype=jnp.float32).reshape(512, 512) / (512 * 512)
    row("dot of 512x512 f32, read back one element", 50, lambda: np.asarray(dot(square)[0, 0]))


if __name__ == "__main__":
    main()
