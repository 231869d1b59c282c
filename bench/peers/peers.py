"""Measures with torch and JAX the work of `cargo run --release --example throughput`, on the same machine.

Prints one JSON object per line: peer, what, milliseconds (median), rate and unit. Matrix products are true f32 unless named otherwise.
"""
import json
import statistics
import sys
import time

SMALL = "small" in sys.argv


def report(peer, what, ms, amount, unit):
    print(json.dumps({"peer": peer, "what": what, "ms": round(ms, 5), "rate": round(amount / (ms * 1e-3), 2), "unit": unit}), flush=True)


def median_ms(run, wait):
    run()
    wait()
    start = time.perf_counter()
    run()
    wait()
    once = time.perf_counter() - start
    batch = max(1, min(200, int(0.05 / max(once, 1e-6))))
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(batch):
            run()
        wait()
        times.append((time.perf_counter() - start) * 1e3 / batch)
    return statistics.median(times)


def sizes():
    return (1 << 22, 1 << 20, 2048, (256, 512)) if SMALL else (1 << 28, 1 << 26, 16384, (1024, 2048, 4096, 8192))


def torch_peer():
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    vector, chain, matrix, dots = sizes()
    a, b = torch.rand(vector, device=device), torch.rand(vector, device=device)
    report("torch", "add_f32", median_ms(lambda: a + b, wait), vector * 12e-9, "GB/s")
    del a, b
    m = torch.rand(matrix, matrix, device=device)
    for what, axes in (("sum_all", (0, 1)), ("sum_axis_0", 0), ("sum_axis_1", 1)):
        report("torch", what, median_ms(lambda: m.sum(axes), wait), matrix * matrix * 4e-9, "GB/s")
    report("torch", f"transpose_{matrix}", median_ms(lambda: m.t().contiguous(), wait), matrix * matrix * 8e-9, "GB/s")
    del m
    for n in dots:
        x, y = torch.rand(n, n, device=device), torch.rand(n, n, device=device)
        report("torch", f"dot_f32_{n}", median_ms(lambda: x @ y, wait), 2 * n**3 * 1e-12, "TFLOP/s")


def jitted(run, *operands):
    """The milliseconds of a function that JAX compiles."""
    import jax

    compiled = jax.jit(run)
    pending = []

    def call():
        pending[:] = [compiled(*operands)]

    return median_ms(call, lambda: jax.block_until_ready(pending[0]))


def jax_peer():
    import jax
    import jax.numpy as jnp

    vector, chain, matrix, dots = sizes()
    key = jax.random.PRNGKey(0)
    x = jax.random.uniform(key, (chain,))
    report("jax", "fused_chain_f32", jitted(lambda x: jnp.tanh(jnp.exp(x * 0.5 + 1) * x - 0.1), x), chain * 8e-9, "GB/s")
    a = jax.random.uniform(key, (vector,))
    report("jax", "add_f32", jitted(lambda a, b: a + b, a, a + 1), vector * 12e-9, "GB/s")
    del a
    m = jax.random.uniform(key, (matrix, matrix))
    for what, axes in (("sum_all", (0, 1)), ("sum_axis_0", 0), ("sum_axis_1", 1)):
        report("jax", what, jitted(lambda m: m.sum(axes), m), matrix * matrix * 4e-9, "GB/s")
    report("jax", f"transpose_{matrix}", jitted(lambda m: m.T + 0, m), matrix * matrix * 8e-9, "GB/s")
    del m
    for n in dots:
        x = jax.random.uniform(key, (n, n))
        report("jax", f"dot_f32_{n}", jitted(lambda x: jnp.matmul(x, x, precision="highest"), x), 2 * n**3 * 1e-12, "TFLOP/s")

    n = 1 << 16 if SMALL else 1 << 24
    side = 1 << (n.bit_length() - 1) // 2
    a = jax.random.uniform(key, (n,))
    table, flat = a.reshape(n // 128, 128), a[: n // 16]
    picks = jax.random.randint(key, (n // 64,), 0, n // 128)
    places = jax.random.randint(key, (n,), 0, n // 16)
    updates = jax.random.uniform(key, (n // 64, 128))
    for what, run, *operands in (
        ("sort", jnp.sort, a),
        ("argsort", jnp.argsort, a),
        ("sort_rows_1024", lambda a: jnp.sort(a, axis=1), a.reshape(n // 1024, 1024)),
        ("top_k_10", lambda a: jax.lax.top_k(a, 10)[0], a),
        ("cumulative_sum", jnp.cumsum, a),
        ("cumulative_sum_axis_0", lambda a: jnp.cumsum(a, axis=0), a.reshape(n // side, side)),
        ("cumulative_sum_axis_1", lambda a: jnp.cumsum(a, axis=1), a.reshape(n // side, side)),
        ("take_rows_128", lambda t, i: jnp.take(t, i, axis=0), table, picks),
        ("indexed_add_rows_128", lambda t, i, u: t.at[i].add(u), table, picks, updates),
        ("indexed_add", lambda t, i, u: t.at[i].add(u), flat, places, a),
    ):
        report("jax", f"{what}_f32_{n}", jitted(run, *operands), n * 1e-9, "Gelement/s")
    side = 256 if SMALL else 4096
    x = jax.random.normal(key, (side, side)).astype("complex64")
    report("jax", "fft_rows_c64", jitted(jnp.fft.fft, x), side * side * 1e-9, "G/s")
    report("jax", "fft2_c64", jitted(jnp.fft.fft2, x), side * side * 1e-9, "G/s")
    images, channels = (2, 16) if SMALL else (64, 64)
    x, w = jax.random.normal(key, (images, channels, 56, 56)), jax.random.normal(key, (channels, channels, 3, 3))
    conv = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", precision="highest")
    report("jax", "conv_3x3_f32", jitted(conv, x, w), images * 56 * 56 * channels * channels * 9 * 2e-12, "TFLOP/s")


SYSTEMS = ((1, 128), (64, 32), (1, 512), (1, 1024), (1024, 16), (1, 2048), (1, 4096))
FACTORS = ((1, 64), (64, 16), (1, 256), (1, 1024), (1024, 16), (1, 2048), (1, 4096))


def matrices(peer, uniform, eye, timed, solvers, factorizations):
    """Times rows of name, share of n ** 3 operations and function: solvers on matrices with a strong diagonal."""
    for shapes, low, rows in ((SYSTEMS, 0, solvers), (FACTORS, -1, factorizations)):
        for batches, n in shapes[: 2 if SMALL else None]:
            for name in ("f32", "f64"):
                a = uniform((batches, n, n), low, name)
                if low == 0:
                    a = a + a.mT + n * eye(n, a.dtype)
                work = batches * n**3 * 1e-9
                for what, share, run in rows:
                    report(peer, f"{what}_{name}_{batches}x{n}", timed(run, a), work * share, "GFLOP/s")


def jax_matrices():
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    key = jax.random.PRNGKey(0)
    types = {"f32": "float32", "f64": "float64"}
    la = jnp.linalg
    matrices(
        "jax",
        lambda shape, low, name: jax.random.uniform(key, shape, minval=low, dtype=types[name]),
        lambda n, dtype: jnp.eye(n, dtype=dtype),
        jitted,
        (
            ("cholesky", 1 / 3, la.cholesky),
            ("lu", 2 / 3, jax.vmap(jax.scipy.linalg.lu)),
            ("solve", 8 / 3, lambda a: la.solve(a, a)),
            ("triangular_solve", 1, lambda a: jax.scipy.linalg.solve_triangular(a, a, lower=True)),
            ("determinant", 2 / 3, la.det),
        ),
        (
            ("qr", 8 / 3, la.qr),
            ("eigh", 9, lambda a: la.eigh(a, symmetrize_input=False)),
            ("svd", 22, lambda a: la.svd(a, full_matrices=False)),
        ),
    )


def torch_matrices():
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    types = {"f32": torch.float32, "f64": torch.float64}
    la = torch.linalg
    matrices(
        "torch",
        lambda shape, low, name: low + (1 - low) * torch.rand(shape, device=device, dtype=types[name]),
        lambda n, dtype: torch.eye(n, device=device, dtype=dtype),
        lambda run, a: median_ms(lambda: run(a), wait),
        (
            ("cholesky", 1 / 3, la.cholesky),
            ("lu", 2 / 3, la.lu),
            ("solve", 8 / 3, lambda a: la.solve(a, a)),
            ("triangular_solve", 1, lambda a: la.solve_triangular(a, a, upper=False)),
            ("determinant", 2 / 3, la.det),
        ),
        (
            ("qr", 8 / 3, la.qr),
            ("eigh", 9, la.eigh),
            ("svd", 22, lambda a: la.svd(a, full_matrices=False)),
        ),
    )


if __name__ == "__main__":
    # Arguments: torch or jax alone, matrices alone, small.
    parts = (("torch", torch_peer), ("jax", jax_peer), ("torch", torch_matrices), ("jax", jax_matrices))
    for name, peer in parts[2:] if "matrices" in sys.argv else parts:
        if any(other in sys.argv for other in ("torch", "jax")) and name not in sys.argv:
            continue
        try:
            peer()
        except ImportError as missing:
            print(json.dumps({"peer": name, "missing": str(missing)}), flush=True)
