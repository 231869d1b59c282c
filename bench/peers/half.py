"""Measures with torch and transformers what `mix run bench/half.exs` measures, with CUDA graphs, captured once and replayed.

Products and convolutions of f32 are true f32. Attention is torch's fused one, and in rows of its own what its parts take. Weights of models are
random. Arguments leave out rows whose names contain none of them. Training steps are in training.py.
"""
import sys

import torch
import torch.nn.functional as F

from torch_graphs import Row, measure

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def uniform(shape, dtype):
    return (torch.rand(shape, device="cuda") * 2 - 1).to(dtype)


def of(shapes, dtype, function):
    def row():
        tensors = [uniform(shape, dtype) for shape in shapes]
        return Row(lambda: function(*tensors), expected=None)

    return row


def rms_norm(x):
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def attend(q, k, v, causal):
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if causal:
        n = q.shape[2]
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool, device="cuda").tril(), -torch.inf)
    return scores.softmax(-1) @ v


def kernels(dtype):
    for n in (1024, 4096, 8192):
        yield f"dot {n}", of([(n, n)] * 2, dtype, torch.matmul)
    for n in (1, 2, 4, 8, 16):
        yield f"14336 x 4096 by {n} vectors", of([(14336, 4096), (4096, n)], dtype, torch.matmul)
    for n in (1, 4, 8):
        yield f"{n} vectors by 4096 x 14336", of([(n, 4096), (4096, 14336)], dtype, torch.matmul)
    dense = lambda x, w, b: F.gelu(torch.addmm(b, x, w))
    yield "dense with GELU 4096 x 768 x 3072", of([(4096, 768), (768, 3072), (3072,)], dtype, dense)

    def convolution():
        x = uniform((64, 64, 56, 56), dtype).to(memory_format=torch.channels_last)
        kernel = uniform((64, 64, 3, 3), dtype).to(memory_format=torch.channels_last)
        return Row(lambda: F.conv2d(x, kernel, padding=1), expected=None)

    yield "conv 3x3, 64 x 56 x 56 x 64", convolution
    shapes = [(4, 16, 2048, 64)] * 3
    for causal in (False, True):
        name = "attention 4 x 16 x 2048 x 64" + (" causal" if causal else "")
        yield name, of(shapes, dtype, lambda q, k, v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c))
        yield name + ", by parts", of(shapes, dtype, lambda q, k, v, c=causal: attend(q, k, v, c))


def elements(dtype):
    n = 8192
    functions = {
        "x + 1": lambda x: x + 1,
        "GELU": F.gelu,
        "tanh(exp(x * 0.5 + 1) * x - 0.1)": lambda x: torch.tanh(torch.exp(x * 0.5 + 1) * x - 0.1),
        "softmax of rows": lambda x: x.softmax(1),
        "layer norm of rows": lambda x: F.layer_norm(x, x.shape[1:]),
        "RMS norm of rows": rms_norm,
        "sum": lambda x: x.sum(),
        "sum of rows": lambda x: x.sum(1),
        "sum of columns": lambda x: x.sum(0),
        "cumulative sum of rows": lambda x: x.cumsum(1, dtype=x.dtype),
    }
    for name, function in functions.items():
        yield f"{name}, {n} x {n}", of([(n, n)], dtype, function)
    if dtype is torch.float32:
        return
    yield f"cast to f32, {n} x {n}", of([(n, n)], dtype, lambda x: x.to(torch.float32))
    yield f"cast from f32, {n} x {n}", of([(n, n)], torch.float32, lambda x: x.to(dtype))


def texts(count=32, length=128):
    ids = torch.arange(count * length, device="cuda").reshape(count, length) * 7919 % 30_000
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def model(build, inputs, dtype):
    def row():
        made, given = build().to("cuda", dtype).eval(), inputs()

        @torch.no_grad()
        def step():
            return made(**given)[0]

        return Row(step, expected=None)

    return row


def generation(build, inputs, dtype, tokens=64):
    """Greedy, as transformers does it: without a graph."""

    def row():
        made, given = build().to("cuda", dtype).eval(), inputs()
        options = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)

        @torch.no_grad()
        def step():
            return made.generate(**given, **options)

        return Row(step, expected=None, graph="none")

    return row


def token(build, dtype, before=512, length=576):
    """A token after `before` others, with a cache of a fixed length."""

    def row():
        import transformers as t

        made = build().to("cuda", dtype).eval()
        cache = t.StaticCache(config=made.config, max_cache_len=length)
        with torch.no_grad():
            made(input_ids=texts(1, before)["input_ids"], past_key_values=cache, use_cache=True)
        ids = torch.full((1, 1), 7, device="cuda")
        position = torch.full((1,), before, device="cuda")

        @torch.no_grad()
        def step():
            # Some versions count in the cache, in a tensor or on the host.
            for layer in cache.layers:
                length = getattr(layer, "cumulative_length", None)
                if isinstance(length, torch.Tensor):
                    length.fill_(before)
                elif length is not None:
                    layer.cumulative_length = before
            outputs = made(input_ids=ids, past_key_values=cache, cache_position=position, use_cache=True)
            return outputs.logits[:, -1].argmax(-1)

        return Row(step, expected=None)

    return row


def models(dtype):
    import transformers as t

    images = lambda n, dtype: lambda: {"pixel_values": uniform((n, 3, 224, 224), dtype)}
    resnet = lambda: t.ResNetForImageClassification(t.ResNetConfig(num_labels=2))
    yield "BERT base, 32 x 128", model(lambda: t.BertModel(t.BertConfig(), add_pooling_layer=True), texts, dtype)
    yield "ViT base, 32 images", model(lambda: t.ViTForImageClassification(t.ViTConfig()), images(32, dtype), dtype)
    yield "ResNet-50, 64 images", model(resnet, images(64, dtype), dtype)
    prompt = lambda: {**texts(1, 512), "use_cache": False}
    llama = t.LlamaConfig(
        vocab_size=50_000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64,
    )
    yield "GPT-2, prompt of 512", model(lambda: t.GPT2Model(t.GPT2Config()), prompt, dtype)
    yield "Llama 1B, prompt of 512", model(lambda: t.LlamaModel(llama), prompt, dtype)
    with_heads = {"GPT-2": lambda: t.GPT2LMHeadModel(t.GPT2Config()), "Llama 1B": lambda: t.LlamaForCausalLM(llama)}
    for name, build in with_heads.items():
        yield f"{name}, 64 tokens after 512", generation(build, lambda: texts(1, 512), dtype)
        yield f"{name}, a token after 512", token(build, dtype)


def main():
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device")
    wanted = sys.argv[1:] or [""]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| | median | synchronous | host | a graph holds |\n|---|---:|---:|---:|---|", flush=True)
    for suffix, dtype in TYPES.items():
        for rows in (kernels, elements, models):
            for name, row in rows(dtype):
                name = f"{name}, {suffix}"
                if any(part in name for part in wanted):
                    measure(name, row())
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
