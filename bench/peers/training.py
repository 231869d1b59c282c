"""Measures with torch and transformers what `mix run bench/training.exs` measures: steps of whole models with Adam.

    python3 bench/peers/training.py [small] [--compile] [--graph] [ROWS ...]

ROWS are parts of the names of the rows to measure, all by default. f32 is true f32, without TF32. bf16 is
`torch.autocast` with parameters of f32, where gradients go backwards in bf16, as in the rows "narrow gradients";
convolutions are in the channels-last layout there. Attention is torch's fused one, Adam its fused one, and the LSTM
cuDNN's. `--compile` compiles forward and backward pass by torch.compile, `--graph` replays a CUDA graph of the whole
step. `small` takes models and sizes for a CPU, and runs there if there is no GPU.

Each row runs in a process of its own, with the caches of kernels empty, so that its first call and its peak are its
own. "peak GB" is `torch.cuda.max_memory_allocated`, from the first step on.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FLAGS = ("small", "--compile", "--graph")
WARM_UP, BATCHES, BATCH_S, MOST_STEPS = 3, 5, 1.0, 200

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)

TEXT = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=64, vocab_size=1000, intermediate_size=128)
SIZES = dict(
    bert={},
    # Bumblebee ties no weights.
    gpt2=dict(tie_word_embeddings=False, use_cache=False),
    llama=dict(
        vocab_size=16_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=1024, tie_word_embeddings=False, use_cache=False,
    ),
    vit={},
    resnet={},
    lstm=dict(words=10_000, units=650, texts=(64, 35)),
    unet=dict(filters=(64, 128, 256, 512, 1024), images=(16, 128)),
    sentences=(32, 128),
    texts=(8, 512),
    long_texts=(4, 1024),
    images=(32, 224),
)
SMALL = dict(
    bert=TEXT,
    gpt2=dict(n_layer=2, n_head=2, n_embd=64, vocab_size=1000, tie_word_embeddings=False, use_cache=False),
    llama=dict(num_key_value_heads=1, head_dim=32, tie_word_embeddings=False, use_cache=False, **TEXT),
    vit=dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=64, intermediate_size=128),
    resnet=dict(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1]),
    lstm=dict(words=1000, units=64, texts=(4, 8)),
    unet=dict(filters=(8, 16, 32), images=(2, 32)),
    sentences=(2, 32),
    texts=(2, 64),
    long_texts=(1, 128),
    images=(2, 32),
)


class LanguageModel(nn.Module):
    """Two LSTMs with dropout before, between and after. torch's have a bias more than Axon's."""

    def __init__(self, words, units):
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, num_layers=2, dropout=0.5, batch_first=True)
        self.dense = nn.Linear(units, words)

    def forward(self, input_ids):
        x, _ = self.lstm(F.dropout(self.embedding(input_ids), 0.5, self.training))
        return self.dense(F.dropout(x, 0.5, self.training))


class Convolutions(nn.Sequential):
    def __init__(self, before, channels):
        layers = []
        for given in (before, channels):
            layers += [nn.Conv2d(given, channels, 3, padding="same", bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    def __init__(self, filters):
        super().__init__()
        *filters, deepest = filters
        self.down = nn.ModuleList(Convolutions(*pair) for pair in zip([3, *filters], filters))
        self.deepest = Convolutions(filters[-1], deepest)
        pairs = list(zip([deepest, *filters[:0:-1]], filters[::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(before, n, 2, stride=2) for before, n in pairs)
        self.joined = nn.ModuleList(Convolutions(2 * n, n) for _, n in pairs)
        self.classes = nn.Conv2d(filters[0], 2, 1)

    def forward(self, pixel_values):
        x, skipped = pixel_values, []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = self.deepest(x)
        for up, block in zip(self.up, self.joined):
            x = block(torch.cat([skipped.pop(), up(x)], 1))
        # A row of logits for each pixel.
        return self.classes(x).permute(0, 2, 3, 1)


def words(shape, vocabulary, mask=True):
    ids = torch.arange(shape[0] * shape[1], device=DEVICE).reshape(shape) * 7919 % vocabulary
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if mask else {"input_ids": ids}


def pixels(shape):
    n, side = shape
    return {"pixel_values": torch.rand((n, 3, side, side), device=DEVICE) * 2 - 1}


def of_images(inputs):
    return torch.arange(len(next(iter(inputs.values()))), device=DEVICE) % 2


def of_words(inputs):
    """The words of a text, each from those up to it."""
    return inputs["input_ids"].flatten()


def of_pixels(inputs):
    return (inputs["pixel_values"].sum(1) > 0).long().flatten()


def models(sizes):
    """Of each row its name, its model, its inputs, its labels and whether it is convolutional."""

    def transformers(model, config, **options):
        def build():
            import transformers as t

            return getattr(t, model)(getattr(t, config)(**options))

        return build

    by = lambda shape: f"{shape[0]} x {shape[1]}"
    sentences, texts, long_texts, images = (sizes[key] for key in ("sentences", "texts", "long_texts", "images"))
    bert, gpt2, llama = sizes["bert"], sizes["gpt2"], sizes["llama"]
    vit = dict(image_size=images[1], num_labels=2, **sizes["vit"])
    lstm, unet = sizes["lstm"], sizes["unet"]
    return [
        (f"BERT base, {by(sentences)}",
         transformers("BertForSequenceClassification", "BertConfig", num_labels=2, **bert),
         lambda: words(sentences, bert.get("vocab_size", 30_000)), of_images, False),
        (f"ResNet-50, {by(images)}",
         transformers("ResNetForImageClassification", "ResNetConfig", num_labels=2, **sizes["resnet"]),
         lambda: pixels(images), of_images, True),
        (f"GPT-2, {by(texts)}", transformers("GPT2LMHeadModel", "GPT2Config", **gpt2),
         lambda: words(texts, gpt2.get("vocab_size", 30_000)), of_words, False),
        (f"ViT base, {by(images)}", transformers("ViTForImageClassification", "ViTConfig", **vit),
         lambda: pixels(images), of_images, False),
        (f"Llama 100M, {by(long_texts)}", transformers("LlamaForCausalLM", "LlamaConfig", **llama),
         lambda: words(long_texts, llama["vocab_size"]), of_words, False),
        (f"LSTM 2 x {lstm['units']}, {by(lstm['texts'])}", lambda: LanguageModel(lstm["words"], lstm["units"]),
         lambda: words(lstm["texts"], lstm["words"], mask=False), of_words, False),
        (f"U-Net, {by(unet['images'])}", lambda: UNet(unet["filters"]),
         lambda: pixels(unet["images"]), of_pixels, True),
    ]


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def step_of(model, inputs, labels, autocast, compiled):
    """A step, which gives its loss."""
    adam = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True, capturable=CUDA)

    def loss_of():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast, cache_enabled=False):
            results = model(**inputs)
        logits = results if isinstance(results, torch.Tensor) else results.logits
        return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), labels)

    if compiled:
        loss_of = torch.compile(loss_of)

    def step():
        adam.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        adam.step()
        return loss.detach()

    return step


def graph_of(step):
    """Replays a graph of the step, after the warm-up on a stream of its own that torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return replay


def timed(step, steps):
    start = time.perf_counter()
    for _ in range(steps):
        loss = step()
    synchronize()
    return (time.perf_counter() - start) / steps, loss


def row(name, build, inputs, labels, convolutional, autocast, flags):
    model, given = build().to(DEVICE).train(), inputs()
    wanted = labels(given)
    if convolutional and autocast:
        model = model.to(memory_format=torch.channels_last)
        given = {key: value.to(memory_format=torch.channels_last) for key, value in given.items()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    synchronize()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    step = step_of(model, given, wanted, autocast, "--compile" in flags)
    start = time.perf_counter()
    if "--graph" in flags:
        step = graph_of(step)
    timed(step, 1)
    first = time.perf_counter() - start
    timed(step, WARM_UP)
    once, _ = timed(step, 1)
    steps = min(max(int(BATCH_S / once), 1), MOST_STEPS)
    times = []
    for _ in range(BATCHES):
        seconds, loss = timed(step, steps)
        times.append(seconds)
    if not torch.isfinite(loss).item():
        sys.exit(f"the loss of {name} is {loss.item()}")
    peak = f"{torch.cuda.max_memory_allocated() / 1e9:.3f}" if CUDA else "-"
    columns = [f"{parameters / 1e6:.1f}", f"{first * 1e3:.1f} ms", f"{statistics.median(times) * 1e3:.1f} ms", peak]
    print(f"| {name} | {' | '.join(columns)} |", flush=True)


def rows(flags):
    suffix = "".join(f", {flag[2:]}" for flag in FLAGS if flag in flags and flag.startswith("--"))
    for name, *of in models(SMALL if "small" in flags else SIZES):
        yield f"{name}, f32{suffix}", of, False
        yield f"{name}, bf16{suffix}", of, True


def alone(name, flags):
    """The row in a process that finds no kernels of others."""
    with tempfile.TemporaryDirectory() as caches:
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=caches, TRITON_CACHE_DIR=caches, CUDA_CACHE_DISABLE="1")
        command = [sys.executable, os.path.abspath(__file__), "--row", name, *flags]
        if subprocess.run(command, env=environment).returncode != 0:
            print(f"| {name} | failed | | | |", flush=True)


def main():
    arguments = sys.argv[1:]
    flags = [argument for argument in arguments if argument in FLAGS]
    if not CUDA and ("small" not in flags or "--graph" in flags):
        sys.exit("torch finds no CUDA device")
    if arguments[:1] == ["--row"]:
        for name, of, autocast in rows(flags):
            if name == arguments[1]:
                row(name, *of, autocast, flags)
        return
    wanted = [argument for argument in arguments if argument not in FLAGS] or [""]
    print(f"{torch.cuda.get_device_name() if CUDA else 'CPU'}, torch {torch.__version__}\n")
    print("| | million parameters | first call | a step | peak GB |\n|---|---:|---:|---:|---:|", flush=True)
    for name, _, _ in rows(flags):
        if any(part in name for part in wanted):
            alone(name, flags)


if __name__ == "__main__":
    main()
