"""Tokens per second of one LoRA step: het-train beside PyTorch, same shapes, same cores.

Run from the repository's root, with torch from PyPI installed and the trainer built:

    cargo build --release -p het-train
    python benches/lora_vs_torch.py target/release/het-train [threads] [rounds]

The two take turns, so that a machine whose speed drifts does not favour one. Weights are random on
the PyTorch side: the shapes decide the speed.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

# SmolLM2-135M
LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, SIZE, VOCABULARY = 30, 576, 1536, 9, 3, 64, 49152
BATCH, LENGTH, SCORED, RANK, ALPHA = 8, 128, 48, 8, 16.0


class Lora(torch.nn.Module):
    """A frozen linear layer with a trained low-rank part."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs) * 0.02, requires_grad=False)
        self.a = torch.nn.Parameter(torch.randn(RANK, inputs) * 0.02)
        self.b = torch.nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.ones(HIDDEN), requires_grad=False) for _ in range(2)]
        )
        self.q, self.o = Lora(HIDDEN, HEADS * SIZE), Lora(HEADS * SIZE, HIDDEN)
        self.k, self.v = Lora(HIDDEN, KV_HEADS * SIZE), Lora(HIDDEN, KV_HEADS * SIZE)
        self.gate, self.up, self.down = Lora(HIDDEN, WIDE), Lora(HIDDEN, WIDE), Lora(WIDE, HIDDEN)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        normed = F.rms_norm(x, (HIDDEN,), self.norms[0], 1e-5)

        def heads(layer: Lora, count: int) -> torch.Tensor:
            return layer(normed).view(batch, length, count, SIZE).transpose(1, 2)

        q, k = rotate(heads(self.q, HEADS), cos, sin), rotate(heads(self.k, KV_HEADS), cos, sin)
        mixed = F.scaled_dot_product_attention(
            q, k, heads(self.v, KV_HEADS), is_causal=True, enable_gqa=True
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        normed = F.rms_norm(x, (HIDDEN,), self.norms[1], 1e-5)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(VOCABULARY, HIDDEN) * 0.02
        self.embedding = torch.nn.Parameter(table, requires_grad=False)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        inverse = 1e5 ** (-torch.arange(0, SIZE, 2).float() / SIZE)
        angles = torch.outer(torch.arange(LENGTH).float(), inverse).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = F.rms_norm(x[:, -SCORED - 1 : -1], (HIDDEN,), None, 1e-5)
        logits = F.linear(x, self.embedding)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, -SCORED:].flatten())


def torch_round(model: Model, optimiser: torch.optim.Optimizer, steps: int) -> float:
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    began = time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        model.loss(tokens).backward()
        optimiser.step()
    return BATCH * LENGTH * steps / (time.perf_counter() - began)


def het_round(program: str, threads: int, steps: int) -> float:
    words = [program, "bench-step", "--batch", str(BATCH), "--seq", str(LENGTH)]
    words += ["--scored", str(SCORED), "--rank", str(RANK), "--steps", str(steps)]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    output = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return json.loads(output.stdout)["tokens_per_s"]


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "target/release/het-train"
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    torch.set_num_threads(threads)
    model = Model()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-3)
    torch_round(model, optimiser, 1)
    ours, theirs = [], []
    for index in range(rounds):
        ours.append(het_round(program, threads, 2))
        theirs.append(torch_round(model, optimiser, 2))
        print(f"round {index + 1}: het-train {ours[-1]:.0f}, torch {theirs[-1]:.0f} tokens/s")
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    print(
        f"median: het-train {statistics.median(ours):.0f}, torch {statistics.median(theirs):.0f} "
        f"tokens/s, ratio {ratio:.2f} ({threads} threads, torch {torch.__version__})"
    )


if __name__ == "__main__":
    main()
