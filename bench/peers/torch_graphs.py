"""Measures with torch what `mix run bench/jit_latency.exs` measures of training steps and rows, each as one CUDA graph that is replayed.

Products and convolutions are true f32. Adam is torch's own, fused into one kernel. Arguments leave out rows whose names contain none of them.
"""
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F

BATCHES, BATCH_S = 7, 0.3

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)


def uniform(shape, scale=1.0):
    return (torch.rand(shape, device="cuda") * 2 - 1) * scale


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
    labels = F.one_hot(torch.arange(images.shape[0], device="cuda") % 10, 10).float()
    adam = torch.optim.Adam(parameters, lr=0.001, eps=1e-8, fused=True, capturable=True)

    def step():
        adam.zero_grad()
        loss = F.cross_entropy(model(images, parameters), labels)
        loss.backward()
        adam.step()
        return loss

    return step


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
        return loss

    return step


def on(shape, f):
    x = uniform(shape)
    return lambda: f(x)


def softmax(x):
    return torch.softmax(x, 1)


def layer_norm(x):
    return F.layer_norm(x, x.shape[1:])


ROWS = [
    ("MLP step 784-512-256-10, batch 128, Adam", lambda: mlp_row([784, 512, 256, 10], 128)),
    ("MLP step 784-2048-2048-10, batch 1024, Adam", lambda: mlp_row([784, 2048, 2048, 10], 1024)),
    ("CNN step, 2 conv, 2 pool, 2 dense, batch 128, Adam", lambda: cnn_row(128)),
    ("transformer block and its gradients, 8 x 128 x 256, 4 heads", lambda: transformer_row(8, 128, 256)),
    ("softmax of rows, 4096 x 4096", lambda: on((4096, 4096), softmax)),
    ("layer norm of rows, 4096 x 4096", lambda: on((4096, 4096), layer_norm)),
    ("softmax of rows, 16384 x 16384", lambda: on((16_384, 16_384), softmax)),
    ("x + 1, 8192 x 8192", lambda: on((8192, 8192), lambda x: x + 1)),
]


def captured(step):
    """A graph of the step, after the warm-up on a stream of its own that torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def run(graph, calls):
    for _ in range(calls):
        graph.replay()
    torch.cuda.synchronize()


def main():
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n| | median |\n|---|---:|", flush=True)
    wanted = sys.argv[1:] or [""]
    for name, setup in ROWS:
        if not any(part in name for part in wanted):
            continue
        graph = captured(setup())
        run(graph, 3)
        start = time.perf_counter()
        run(graph, 10)
        once = (time.perf_counter() - start) / 10
        calls = min(max(int(BATCH_S / once), 1), 20_000)
        times = []
        for _ in range(BATCHES):
            start = time.perf_counter()
            run(graph, calls)
            times.append((time.perf_counter() - start) * 1e6 / calls)
        median = statistics.median(times)
        print(f"| {name} | {median:.1f} us |" if median < 1000 else f"| {name} | {median * 1e-3:.2f} ms |", flush=True)


if __name__ == "__main__":
    main()
