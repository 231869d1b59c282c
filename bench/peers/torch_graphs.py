"""Measures with torch what `mix run bench/jit_latency.exs` measures, with CUDA graphs, captured once and replayed.

Products and convolutions are true f32. Adam is torch's own, fused into one kernel. The last column says how many calls
a graph holds. A graph has no loop that ends by its data: where the work does, a graph holds a block of steps, the host
reads after each block whether to go on, and up to a block less one of steps too many run. "synchronous" is the median
of single calls on an idle device with `torch.cuda.synchronize`, "host" until they return. Arguments leave out rows
whose names contain none of them.

    python3 torch_graphs.py --check [ROWS ...]

measures nothing: it compares each row's results with those of jit.py in f64 on the CPU (JAX must be there), on the GPU
through the graphs, and where there is none step by step.
"""
import dataclasses
import math
import os
import statistics
import sys
import time
from typing import Callable

import torch
import torch.nn.functional as F

BATCHES, BATCH_S = 7, 0.3
# Calls on an idle device: so many, or what fits into this time.
ALONE_CALLS, ALONE_S = 101, 0.2
# Steps of a loop between two looks at whether it has ended.
BLOCK = 10
WARM_UP = 3
NO_GRAPH = "none"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
# Of the largest magnitude that is expected. TF32 has 3e-4 in a product.
TOLERANCE = 2e-5
# Of losses after some steps of Adam, which divides small gradients by their own size.
TRAINED = 5e-4

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)


def once(replay):
    return replay()


@dataclasses.dataclass
class Row:
    """`step` is what a graph holds; it gives the tensors of a result, and replays write the same ones.

    `call` makes of a replay what jit.py calls once. `expected` maps jit.py and the number of steps run so far to what
    the last has given.
    """

    step: Callable
    expected: Callable
    call: Callable = once
    # Whether each call's result is read, or the last one's is waited for.
    read: str = "last"
    graph: str = "1"
    tolerance: float = TOLERANCE
    # What of a result is compared.
    view: Callable = lambda result: result


def first(result):
    return result[0] if isinstance(result, tuple) else result


def uniform(shape, scale=1.0):
    return (torch.rand(shape, device=DEVICE) * 2 - 1) * scale


def vector(n):
    return torch.arange(n, dtype=torch.float32, device=DEVICE) / (n * 10)


def f64(*tensors):
    """For jit.py, and no longer what a step writes to."""
    arrays = [t.detach().double().cpu().numpy().copy() for t in tensors]
    return arrays[0] if len(arrays) == 1 else arrays


def tiny(x, out=None):
    # x * 2 + 1 as one kernel.
    return torch.add(ONE, x, alpha=2, out=out)


ONE = torch.ones((), device=DEVICE)


def tiny_row(read, call=once):
    x, start = vector(16), f64(vector(16))

    def expected(jit, steps):
        y = start
        for _ in range(steps):
            y = jit.tiny(y)
        return y

    # A thousand steps overflow, here and there.
    return Row(lambda: tiny(x, out=x), expected, call=call, read=read)


def thousand(replay):
    for _ in range(1000):
        result = replay()
    return result


def tiny_loop_row():
    x = vector(16)

    def step():
        y = x
        for _ in range(1000):
            y = tiny(y)
        return y

    return Row(step, lambda jit, _: jit.thousand_calls(f64(x)), read="each", graph="1, of 1,000 calls")


def while_row():
    x = vector(16)

    def step():
        y = x
        for _ in range(1000):
            y = torch.add(y * 0.99, torch.sin(y), alpha=0.01)
        return y

    # Rounding adds up over the steps.
    return Row(step, lambda jit, _: jit.thousand(f64(x)), read="each", graph="1, of 1,000 steps", tolerance=1e-4)


def value_and_grad(density, q):
    value = density(q)
    (gradient,) = torch.autograd.grad(value, q)
    return value, gradient


def eight_schools_row(read):
    q = vector(10).requires_grad_()
    effects = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], device=DEVICE)
    errors = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], device=DEVICE)

    def density(q):
        mu, log_tau, raw = q[0], q[1], q[2:10]
        tau = torch.exp(log_tau)
        residual = (effects - (mu + tau * raw)) / errors
        prior = -0.5 * (mu / 5.0) ** 2 - torch.log1p((tau / 5.0) ** 2) + log_tau - 0.5 * torch.sum(raw * raw)
        return prior - 0.5 * torch.sum(residual * residual)

    return Row(lambda: value_and_grad(density, q), lambda jit, _: jit.eight_schools(f64(q)), read=read)


def regime_density(q, r):
    def normal(x, mu, sigma):
        return -0.5 * ((x - mu) / sigma) ** 2 - torch.log(sigma) - 0.9189385332046728

    def standard(x):
        return -0.5 * x**2 - 0.9189385332046728

    def half_cauchy(x, scale):
        return -0.45158270528945486 - math.log(scale) - torch.log1p((x / scale) ** 2)

    trend_sigma, mr_sigma, vol_sigma, theta = torch.exp(q[1]), torch.exp(q[3]), torch.exp(q[4]), torch.exp(q[5])
    w1, w2 = torch.exp(q[6].clamp(max=10)), torch.exp(q[7].clamp(max=10))
    total = w1 + w2 + 1
    before = F.pad(r[:-1], (1, 0))
    trend = normal(r, q[0], trend_sigma) + torch.log(w1 / total)
    reverting = normal(r, before + theta * (q[2] - before), mr_sigma) + torch.log(w2 / total)
    volatile = normal(r, 0.0, vol_sigma) + torch.log(1 / total)
    likelihood = torch.logsumexp(torch.stack([trend, reverting, volatile]), 0).sum()
    # Normals of mean 0.001 and deviation 0.01.
    drifts = standard((q[0] - 0.001) / 0.01) + standard((q[2] - 0.001) / 0.01) - 2 * math.log(0.01)
    priors = drifts + standard(q[6]) + standard(q[7])
    scales = half_cauchy(trend_sigma, 0.02) + half_cauchy(mr_sigma, 0.02) + half_cauchy(vol_sigma, 0.05)
    return likelihood + priors + scales + half_cauchy(theta, 0.5) + q[1] + q[3] + q[4] + q[5]


def regime_row(read):
    q = torch.tensor([0.01, -3.0, 0.02, -3.0, -3.0, -3.0, 0.05, 0.05], device=DEVICE, requires_grad=True)
    r = torch.tensor([((i * 37 % 64) / 64 - 0.5) * 0.02 for i in range(1, 201)], device=DEVICE)
    # jit.py's returns are part of its step, and the same.
    return Row(
        lambda: value_and_grad(lambda q: regime_density(q, r), q), lambda jit, _: jit.regime_step(f64(q)), read=read
    )


def mlp(images, parameters):
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = torch.relu(torch.addmm(b1, images, w1))
    hidden = torch.relu(torch.addmm(b2, hidden, w2))
    return torch.addmm(b3, hidden, w3)


def cnn(images, parameters):
    k1, c1, k2, c2, w1, b1, w2, b2 = parameters
    x = F.max_pool2d(torch.relu(F.conv2d(images, k1, c1, padding="same")), 2)
    x = F.max_pool2d(torch.relu(F.conv2d(x, k2, c2, padding="same")), 2).reshape(images.shape[0], -1)
    return torch.addmm(b2, torch.relu(torch.addmm(b1, x, w1)), w2)


def train(model, shapes, images):
    """The step of a model whose parameters are drawn as those of jit.py."""
    parameters = [uniform(shape, scale).requires_grad_() for shape, scale in shapes]
    labels = F.one_hot(torch.arange(images.shape[0], device=DEVICE) % 10, 10).float()
    adam = torch.optim.Adam(parameters, lr=0.001, eps=1e-8, fused=True, capturable=CUDA)
    start = [p.detach().cpu() for p in map(torch.clone, parameters)]

    def step():
        adam.zero_grad()
        loss = F.cross_entropy(model(images, parameters), labels)
        loss.backward()
        adam.step()
        return loss

    def expected(jit, steps):
        state = jit.state(f64(*start))
        train = jit.trainer(getattr(jit, model.__name__))
        for _ in range(steps):
            loss, state = train(state, f64(images), f64(labels))
        return loss

    return Row(step, expected, tolerance=TRAINED)


def mlp_row(sizes, batch):
    shapes = []
    for n, m in zip(sizes, sizes[1:]):
        shapes += [((n, m), math.sqrt(6 / (n + m))), ((m,), 0.0)]
    return train(mlp, shapes, uniform((batch, sizes[0])))


def cnn_row(batch):
    shapes = [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (3136, 128), (128,), (128, 10), (10,)]
    return train(cnn, [(shape, 0.05) for shape in shapes], uniform((batch, 1, 28, 28)))


def block(x, parameters, heads=4):
    """A transformer block, pre-norm, causal, gelu."""
    g1, b1, w_qkv, w_out, g2, b2, w_up, b_up, w_down, b_down = parameters
    batch, length, d = x.shape
    qkv = (F.layer_norm(x, (d,), g1, b1) @ w_qkv).reshape(batch, length, 3, heads, d // heads)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, d)
    x = x + mixed @ w_out
    return x + F.gelu(F.layer_norm(x, (d,), g2, b2) @ w_up + b_up) @ w_down + b_down


def transformer_row(batch, length, d):
    shapes = [(d,), (d,), (d, 3 * d), (d, d), (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    x = uniform((batch, length, d))
    parameters = [uniform(shape, 1 / math.sqrt(d)).requires_grad_() for shape in shapes]

    def step():
        for parameter in parameters:
            parameter.grad = None
        loss = (block(x, parameters) ** 2).mean()
        loss.backward()
        return loss, *(parameter.grad for parameter in parameters)

    def expected(jit, _):
        loss, gradients = jit.block_step(tuple(f64(*parameters)), f64(x))
        return loss, *gradients

    return Row(step, expected)


def until(reset, most):
    """Blocks of steps until the last of what they give is false, or `most` steps have run."""

    def call(replay):
        reset()
        for _ in range(most // BLOCK):
            result = replay()
            if not result[-1].item():
                break
        return result

    return call


def regression_row(n, features):
    x = uniform((n, features))
    truth = torch.sin(torch.arange(features, device=DEVICE))
    y = (x @ truth > 0.7 * torch.sin(torch.arange(n, device=DEVICE))).float()
    w = torch.zeros(features, device=DEVICE)

    def step():
        for _ in range(BLOCK):
            g = torch.mv(x.t(), torch.sigmoid(torch.mv(x, w)) - y) / n
            w.sub_(g, alpha=2.0)
        return w, torch.linalg.vector_norm(g) > 1e-3

    return Row(
        step,
        lambda jit, _: jit.regression(f64(x), f64(y))[0],
        call=until(w.zero_, 500),
        read="each",
        graph=f"{BLOCK} steps, their end is read by the host",
        tolerance=1e-4,
        view=first,
    )


def k_means_row(n, features, k):
    x = uniform((n, features))
    centres = x[:k].clone()
    numbers = torch.arange(k, device=DEVICE)

    def step():
        for _ in range(BLOCK):
            nearest = torch.addmm((centres * centres).sum(1), x, centres.t(), alpha=-2).argmin(1)
            members = (nearest[:, None] == numbers).float()
            following = members.t() @ x / members.sum(0).clamp(min=1)[:, None]
            moved = ((following - centres) ** 2).sum()
            centres.copy_(following)
        return centres, moved > 1e-8

    return Row(
        step,
        lambda jit, _: jit.k_means(f64(x), f64(x)[:k]),
        call=until(lambda: centres.copy_(x[:k]), 20),
        read="each",
        graph=f"{BLOCK} steps, their end is read by the host",
        # A point about as near to two centres may go to the other.
        tolerance=5e-3,
        view=first,
    )


def pca_row(n, features):
    x = uniform((n, features))

    return Row(
        lambda: torch.linalg.svd(x - x.mean(0), full_matrices=False)[2][:8],
        lambda jit, _: projection(jit.pca(f64(x))),
        read="each",
        graph=f"{NO_GRAPH}: svd asks on the host whether it converged",
        tolerance=1e-3,
        view=projection,
    )


def projection(components):
    """The same for components of either sign."""
    return components.T @ components


def on(shape, f, name):
    """A function of rows, or of elements: the first rows are compared."""
    x = uniform(shape)
    return Row(lambda: f(x), lambda jit, _: getattr(jit, name)(f64(x[:64])), view=lambda result: result[:64])


def add_one(x):
    return x + 1


def chain(x):
    return torch.tanh(torch.exp(x * 0.5 + 1) * x - 0.1)


def softmax(x):
    return torch.softmax(x, 1)


def layer_norm(x):
    return F.layer_norm(x, x.shape[1:])


ROWS = [
    ("tiny call, synchronous", lambda: tiny_row("each")),
    ("tiny call, pipelined", lambda: tiny_row("last")),
    ("1,000 tiny calls one after the other, the last read", lambda: tiny_row("each", thousand)),
    ("1,000 tiny calls one after the other, the last read, in one graph", tiny_loop_row),
    ("value_and_grad of eight schools, pipelined", lambda: eight_schools_row("last")),
    ("value_and_grad of eight schools, synchronous", lambda: eight_schools_row("each")),
    ("while of 1,000 steps of 16 f32", while_row),
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
    ("softmax of rows, 4096 x 4096", lambda: on((4096, 4096), softmax, "softmax")),
    ("layer norm of rows, 4096 x 4096", lambda: on((4096, 4096), layer_norm, "layer_norm")),
    ("softmax of rows, 16384 x 16384", lambda: on((16_384, 16_384), softmax, "softmax")),
    ("x + 1, 8192 x 8192", lambda: on((8192, 8192), add_one, "add_one")),
    ("tanh(exp(x * 0.5 + 1) * x - 0.1), 8192 x 8192", lambda: on((8192, 8192), chain, "chain")),
    (
        "tanh(exp(x * 0.5 + 1) * x - 0.1), 8192 x 8192, fused by torch.compile",
        lambda: on((8192, 8192), torch.compile(chain), "chain"),
    ),
]


def captured(row):
    """Replays a graph of the row's step, after the warm-up on a stream of its own that torch asks for."""
    if not CUDA or row.graph.startswith(NO_GRAPH):
        for _ in range(WARM_UP):
            row.step()
        return row.step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            row.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = row.step()

    def replay():
        graph.replay()
        return result

    return replay


def run(row, replay, calls):
    for _ in range(calls):
        result = row.call(replay)
        if row.read == "each":
            first(result).cpu()
    torch.cuda.synchronize()


def alone(row, replay):
    """Medians in us until a call on an idle device returns, and until its result is there."""
    hosts, waits = [], []
    stop = time.perf_counter() + ALONE_S
    while not hosts or (len(hosts) < ALONE_CALLS and time.perf_counter() < stop):
        start = time.perf_counter()
        row.call(replay)
        hosts.append((time.perf_counter() - start) * 1e6)
        torch.cuda.synchronize()
        waits.append((time.perf_counter() - start) * 1e6)
    return statistics.median(hosts), statistics.median(waits)


def show(us):
    return f"{us:.1f} us" if us < 1000 else f"{us * 1e-3:.2f} ms"


def measure(name, row):
    replay = row.step if row.graph == "none" else captured(row)
    run(row, replay, 3)
    start = time.perf_counter()
    run(row, replay, 10)
    once = (time.perf_counter() - start) / 10
    calls = min(max(int(BATCH_S / once), 1), 20_000)
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        run(row, replay, calls)
        times.append((time.perf_counter() - start) * 1e6 / calls)
    host, synchronous = alone(row, replay)
    columns = [statistics.median(times), synchronous, host]
    print(f"| {name} | {' | '.join(map(show, columns))} | {row.graph} |", flush=True)


def check(name, row, jit):
    """Whether the row gives what jit.py does. Steps that change their state have run so often by then."""
    steps = WARM_UP

    def counted():
        nonlocal steps
        steps += 1
        return replay()

    replay = captured(row)
    for _ in range(2):
        result = row.call(counted)
    results, expected = row.view(result), row.expected(jit, steps)
    if not isinstance(results, tuple):
        results, expected = (results,), (expected,)
    worst = 0.0
    for got, want in zip(results, expected, strict=True):
        got, want = torch.from_numpy(f64(got)), torch.tensor(want.tolist(), dtype=torch.float64)
        # What overflows in f32 does not in f64.
        want = torch.where(want.abs() > torch.finfo(torch.float32).max, want.sign() * math.inf, want)
        equal = (got == want).all().item()
        worst = max(worst, 0.0 if equal else ((got - want).abs().max() / want.abs().max()).item())
    # Not-a-number compares as false.
    passed = worst <= row.tolerance
    print(f"{'ok  ' if passed else 'FAIL'} {worst:.1e} of {row.tolerance:.0e}: {name}", flush=True)
    return passed


def main():
    checks = "--check" in sys.argv
    wanted = [part for part in sys.argv[1:] if part != "--check"] or [""]
    rows = [(name, setup) for name, setup in ROWS if any(part in name for part in wanted)]
    if checks:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["JAX_ENABLE_X64"] = "1"
        import jit

        missing = {name for name, _ in jit.ROWS} - {name for name, _ in ROWS}
        for name in missing:
            print(f"FAIL no such row: {name}")
        sys.exit(1 if missing or not all([check(name, setup(), jit) for name, setup in rows]) else 0)
    if not CUDA:
        sys.exit("torch finds no CUDA device: without one only --check runs")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| | median | synchronous | host | a graph holds |\n|---|---:|---:|---:|---|", flush=True)
    for name, setup in rows:
        measure(name, setup())


if __name__ == "__main__":
    main()
