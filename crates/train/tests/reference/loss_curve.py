"""Writes loss_curve.json: 20 LoRA steps of the tiny model in PyTorch float64, by autograd.

Independent of the Rust code but for the weights, which `het-train tiny` wrote:

    het-train tiny --output /tmp/tiny && python loss_curve.py /tmp/tiny > loss_curve.json
"""

import json
import math
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

STEPS, RANK, ALPHA, PEAK = 20, 4, 8.0, 0.01
LENGTHS = (20, 33, 70)

weights = {k: v.double() for k, v in load_file(sys.argv[1] + "/model.safetensors").items()}
config = json.load(open(sys.argv[1] + "/config.json"))
heads, kv_heads, size = (
    config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
)
LINEARS = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]

adapter = {}
for layer in range(config["num_hidden_layers"]):
    for linear in LINEARS:
        name = f"model.layers.{layer}.{linear}"
        outputs, inputs = weights[name + ".weight"].shape
        a = torch.sin(0.7 * torch.arange(RANK * inputs, dtype=torch.float64)) / math.sqrt(inputs)
        adapter[name] = (a.view(RANK, inputs), torch.zeros(outputs, RANK, dtype=torch.float64))
parameters = [p.requires_grad_() for pair in adapter.values() for p in pair]


def linear(x, name):
    a, b = adapter[name]
    return x @ weights[name + ".weight"].T + ALPHA / RANK * (x @ a.T) @ b.T


def norm(x, weight):
    return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight


def rotate(x):
    half = size // 2
    frequency = config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequency)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def loss_sum(tokens):
    x = weights["model.embed_tokens.weight"][tokens]
    length = len(tokens)
    mask = torch.triu(torch.full((length, length), -math.inf, dtype=torch.float64), 1)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        normed = norm(x, weights[name + "input_layernorm.weight"])
        split = lambda y, n: y.view(length, n, size).transpose(0, 1)
        q = rotate(split(linear(normed, name + "self_attn.q_proj"), heads))
        k = rotate(split(linear(normed, name + "self_attn.k_proj"), kv_heads))
        v = split(linear(normed, name + "self_attn.v_proj"), kv_heads)
        k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, v))
        mixed = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(size) + mask, -1) @ v
        x = x + linear(mixed.transpose(0, 1).reshape(length, -1), name + "self_attn.o_proj")
        normed = norm(x, weights[name + "post_attention_layernorm.weight"])
        gated = F.silu(linear(normed, name + "mlp.gate_proj"))
        gated = gated * linear(normed, name + "mlp.up_proj")
        x = x + linear(gated, name + "mlp.down_proj")
    logits = norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T
    scored = [i for i in range(1, length) if i % 3 != 0]
    picked = logits[[i - 1 for i in scored]]
    return F.cross_entropy(picked, tokens[scored], reduction="sum"), len(scored)


sequences = [
    torch.tensor([(i * 37 + s * 11) % config["vocab_size"] for i in range(length)])
    for s, length in enumerate(LENGTHS)
]
optimiser = torch.optim.AdamW(parameters, lr=PEAK, weight_decay=0.01)
losses = []
for step in range(1, STEPS + 1):
    parts = [loss_sum(tokens) for tokens in sequences]
    loss = sum(part[0] for part in parts) / sum(part[1] for part in parts)
    losses.append(loss.item())
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    warm = math.ceil(STEPS / 10)
    cosine = 0.5 * (1 + math.cos(math.pi * (step - warm) / (STEPS - warm)))
    rate = PEAK * step / warm if step <= warm else PEAK * (0.1 + 0.9 * cosine)
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
print(json.dumps({"torch": torch.__version__, "losses": losses}, indent=1))
