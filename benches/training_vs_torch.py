"""Training steps of het-train beside PyTorch: tokens a second and peak memory, on the same cores.

`cargo xtask study train` builds the trainer and runs this; by hand, from the repository's root:

    pip install torch transformers peft
    cargo build --release -p het-train
    python3 benches/training_vs_torch.py target/release/het-train [CASE|all] [threads] [rounds]

The two take turns, each in a process of its own, so that a machine whose speed drifts does not
favour one. Both draw their weights: the shapes decide the speed. A round's figure is the median of
its steps, the first left out; the ratio is the median over the rounds of het-train's over
PyTorch's.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SMOLLM2 = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 2048, "rope_theta": 100000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip
GPT = {
    "model_type": "gpt2", "vocab_size": 259, "n_embd": 384, "n_layer": 6, "n_head": 6,
    "n_positions": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
# Configuration, sequences, their tokens, how many of them are scored, steps a round.
CASES = {
    # An adapter by transformers and PEFT, as people train one.
    "lora": (SMOLLM2, 8, 128, 127, 2),
    # The same written out in PyTorch, with answers of 48 tokens: neither computes other logits.
    "lora-plain": (SMOLLM2, 8, 128, 48, 2),
    "full": (SMOLLM2, 4, 256, 255, 2),
    "scratch": (GPT, 16, 256, 255, 6),
    # Products in bf16 on both sides: frozen weights stored so, and what learns in f32 with autocast.
    "lora-bf16": (SMOLLM2, 8, 128, 127, 2),
    "full-bf16": (SMOLLM2, 4, 256, 255, 2),
    "scratch-bf16": (GPT, 16, 256, 255, 6),
}
IN_BF16 = "-bf16"
RANK, ALPHA = 8, 16.0


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def transformers_loss(case: str):
    """The parameters that learn, and the loss of a batch of tokens."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    configuration = CASES[case][0]
    kind = {"llama": LlamaConfig, "gpt2": GPT2Config}[configuration["model_type"]]
    is_adapter = case.startswith("lora")
    frozen = torch.bfloat16 if is_adapter and case.endswith(IN_BF16) else torch.float32
    model = AutoModelForCausalLM.from_config(kind(**configuration), dtype=frozen)
    if is_adapter:
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
        model = get_peft_model(model, adapter)
    model.train()

    def loss(tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=case.endswith(IN_BF16)):
            return model(tokens, labels=tokens).loss

    return list(model.parameters()), loss


def plain_loss(case: str):
    """As `transformers_loss`, without either library."""
    import torch
    import torch.nn.functional as F

    configuration, _, length, scored, _ = CASES[case]
    hidden, wide = configuration["hidden_size"], configuration["intermediate_size"]
    heads, kv_heads = configuration["num_attention_heads"], configuration["num_key_value_heads"]
    size, epsilon = hidden // heads, configuration["rms_norm_eps"]

    class Lora(torch.nn.Module):
        """A frozen linear layer with a trained low-rank part."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            weight = torch.randn(outputs, inputs) * 0.02
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.a = torch.nn.Parameter(torch.randn(RANK, inputs) * 0.02)
            self.b = torch.nn.Parameter(torch.zeros(outputs, RANK))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            update = F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)
            return F.linear(x, self.weight) + update

    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = lambda: torch.nn.Parameter(torch.ones(hidden), requires_grad=False)  # noqa: E731
            self.norms = torch.nn.ParameterList([norm(), norm()])
            self.q, self.o = Lora(hidden, heads * size), Lora(heads * size, hidden)
            self.k, self.v = Lora(hidden, kv_heads * size), Lora(hidden, kv_heads * size)
            self.gate, self.up = Lora(hidden, wide), Lora(hidden, wide)
            self.down = Lora(wide, hidden)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            normed = F.rms_norm(x, (hidden,), self.norms[0], epsilon)

            def split(layer: Lora, count: int) -> torch.Tensor:
                return layer(normed).view(batch, length, count, size).transpose(1, 2)

            q = rotate(split(self.q, heads), cos, sin)
            k = rotate(split(self.k, kv_heads), cos, sin)
            mixed = F.scaled_dot_product_attention(
                q, k, split(self.v, kv_heads), is_causal=True, enable_gqa=True
            )
            x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
            normed = F.rms_norm(x, (hidden,), self.norms[1], epsilon)
            return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    vocabulary = configuration["vocab_size"]
    table = torch.nn.Parameter(torch.randn(vocabulary, hidden) * 0.02, requires_grad=False)
    blocks = torch.nn.ModuleList(Block() for _ in range(configuration["num_hidden_layers"]))
    inverse = configuration["rope_theta"] ** (-torch.arange(0, size, 2).float() / size)
    angles = torch.outer(torch.arange(length).float(), inverse).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, table)
        for block in blocks:
            x = block(x, cos, sin)
        x = F.rms_norm(x[:, -scored - 1 : -1], (hidden,), None, epsilon)
        logits = F.linear(x, table)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, -scored:].flatten())

    return list(blocks.parameters()), loss


def torch_steps(case: str, threads: int) -> None:
    """Prints what one process of PyTorch does."""
    import torch

    torch.set_num_threads(threads)
    configuration, batch, length, _, steps = CASES[case]
    parameters, loss = plain_loss(case) if case == "lora-plain" else transformers_loss(case)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4)
    tokens = torch.randint(0, configuration["vocab_size"], (batch, length))
    seconds = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        optimiser.zero_grad()
        loss(tokens).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        seconds.append(time.perf_counter() - began)
    speed = batch * length / statistics.median(seconds[1:])
    print(json.dumps({"tokens_per_s": speed, "peak_bytes": peak_bytes()}))


def measured(words: list[str], threads: int) -> dict:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return json.loads(output.stdout.splitlines()[-1])


def het_words(program: str, case: str, directory: str) -> list[str]:
    configuration, batch, length, scored, steps = CASES[case]
    subprocess.run([program, "tiny", "--output", directory], check=True, capture_output=True)
    os.remove(os.path.join(directory, "model.safetensors"))
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(configuration, file)
    method = "lora" if case.startswith("lora") else "full"
    sizes = ["--batch", str(batch), "--seq", str(length), "--scored", str(scored)]
    precision = "bf16" if case.endswith(IN_BF16) else "f32"
    return [program, "bench-step", "--weights", directory, "--from-scratch", "--method", method,
            "--rank", str(RANK), "--steps", str(steps), "--profile", "--precision", precision,
            *sizes]  # fmt: skip


def compare(program: str, case: str, threads: int, rounds: int) -> tuple[list[dict], list[dict]]:
    """What het-train and PyTorch say of each round."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as directory:
        words = het_words(program, case, directory)
        for _ in range(rounds):
            ours.append(measured(words, threads))
            torch_words = [sys.executable, __file__, "--torch", case, str(threads)]
            theirs.append(measured(torch_words, threads))
    return ours, theirs


def profile_row(ours: list[dict]) -> tuple[str, list[str]]:
    """The share of the peak rate of products, and the parts of a step, of the median round."""
    ours = sorted(ours, key=lambda item: item["step_s"])
    median = ours[len(ours) // 2]
    profile = median["profile"]
    share = profile["products_flop_per_s"] / max(i["profile"]["peak_flop_per_s"] for i in ours)
    parts = sorted(profile["seconds"].items(), key=lambda part: -part[1])
    named = [f"{name.replace('_', ' ')} {part / median['step_s']:.1%}" for name, part in parts]
    return f"{profile['products_flop_per_s'] / 1e9:.0f} GFLOP/s, {share:.0%}", named


def main() -> None:
    if sys.argv[1] == "--torch":
        return torch_steps(sys.argv[2], int(sys.argv[3]))
    program = sys.argv[1]
    cases = [sys.argv[2]] if len(sys.argv) > 2 and sys.argv[2] != "all" else list(CASES)
    with open("/proc/cpuinfo") as cpu:
        if len(cases) > 1 and "avx512_bf16" not in cpu.read():
            # Without the instructions bf16 is slower than f32, here and there.
            cases = [case for case in cases if not case.endswith(IN_BF16)]
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else len(os.sched_getaffinity(0))
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    print(
        "| training | het-train tokens/s | PyTorch tokens/s | ratio of each round | ratio "
        "| peak MiB | PyTorch MiB | ratio | products, share of peak | what a step's time goes to |"
    )
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- | --- |")
    for case in cases:
        ours, theirs = compare(program, case, threads, rounds)
        speeds = [[item["tokens_per_s"] for item in items] for items in (ours, theirs)]
        peaks = [max(item["peak_bytes"] for item in items) / 2**20 for items in (ours, theirs)]
        ratios = [a / b for a, b in zip(*speeds)]
        products, parts = profile_row(ours)
        print(
            f"| {case} | {statistics.median(speeds[0]):.0f} | {statistics.median(speeds[1]):.0f} "
            f"| {' '.join(f'{ratio:.2f}' for ratio in ratios)} | {statistics.median(ratios):.2f} "
            f"| {peaks[0]:.0f} | {peaks[1]:.0f} | {peaks[0] / peaks[1]:.2f} | {products} "
            f"| {', '.join(parts)} |",
            flush=True,
        )
    import torch

    print(f"\n{threads} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
