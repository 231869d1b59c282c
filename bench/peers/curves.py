"""Losses of torch's from the weights and on the texts of `mix run bench/curves.exs`, and how far ours are from them.

    python3 bench/peers/curves.py FOLDER

f32 is true f32, without TF32, and Adam is torch's. Without dropout the curves are compared step by step. With dropout
they differ by seed: the means of 20 steps of our five seeds are to lie within those of torch's five.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEEDS = range(1, 6)
WINDOW = 20
BOUND = 1e-3

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def losses(weights, texts, known, dropout, seed):
    torch.manual_seed(seed)
    wte, wpe = weights["transformer.wte.weight"], weights["transformer.wpe.weight"]
    config = transformers.GPT2Config(
        vocab_size=wte.shape[0], n_positions=wpe.shape[0], n_embd=wte.shape[1], n_head=known["heads"],
        n_layer=sum(name.endswith("ln_1.weight") for name in weights), resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, tie_word_embeddings=False, use_cache=False, bos_token_id=None, eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or any(not name.endswith((".attn.bias", ".attn.masked_bias")) for name in missing):
        sys.exit(f"weights that are missing {missing}, or too many {unexpected}")
    model = model.to(DEVICE).train()
    adam = torch.optim.Adam(model.parameters(), lr=known["rate"])
    found = []
    for text in texts.to(DEVICE):
        adam.zero_grad(set_to_none=True)
        logits = model(input_ids=text[:, :-1], attention_mask=torch.ones_like(text[:, :-1])).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), text[:, 1:].reshape(-1))
        loss.backward()
        adam.step()
        found.append(loss.detach())
    return [loss.item() for loss in found]


def windows(curve):
    return [sum(curve[at:at + WINDOW]) / WINDOW for at in range(0, len(curve) - WINDOW + 1, WINDOW)]


def main():
    folder = sys.argv[1]
    weights = load_file(os.path.join(folder, "curves.safetensors"))
    texts = weights.pop("texts")
    with open(os.path.join(folder, "ours.json")) as file:
        ours = json.load(file)
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"ours: {ours['device']}; torch {torch.__version__}: {name}\n")

    plain = losses(weights, texts, ours, 0.0, 0)
    apart = [abs(a - b) / abs(b) for a, b in zip(ours["plain"], plain)]
    print("| step | loss | torch's | relative difference |\n|---:|---:|---:|---:|")
    for at in [0, *range(9, len(plain), 10)]:
        print(f"| {at + 1} | {ours['plain'][at]:.5f} | {plain[at]:.5f} | {apart[at]:.1e} |")
    worst = max(range(len(apart)), key=apart.__getitem__)
    print(f"\nWithout dropout the worst relative difference is {apart[worst]:.1e}, at step {worst + 1}.\n")

    dropped = [windows(losses(weights, texts, ours, ours["dropout"], seed)) for seed in SEEDS]
    own = [windows(curve) for curve in ours["dropped"]]
    print("| steps | five seeds | torch's five seeds | mean | torch's mean |\n|---|---:|---:|---:|---:|")
    outside = 0
    for at in range(len(own[0])):
        us, them = [curve[at] for curve in own], [curve[at] for curve in dropped]
        mean = sum(us) / len(us)
        outside += not min(them) <= mean <= max(them)
        print(f"| {at * WINDOW + 1} to {(at + 1) * WINDOW} | {min(us):.4f} to {max(us):.4f} | "
              f"{min(them):.4f} to {max(them):.4f} | {mean:.4f} | {sum(them) / len(them):.4f} |")
    print(f"\nWith dropout the mean of our seeds is outside of torch's {outside} times of {len(own[0])}.")
    if apart[worst] > BOUND:
        sys.exit(f"the curves without dropout are more than {BOUND} apart")


if __name__ == "__main__":
    main()
