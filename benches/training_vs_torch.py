"""Training steps of het-train beside PyTorch: tokens a second and peak memory, on the same cores.

Run from the repository's root, with torch, transformers and peft from PyPI installed and the
trainer built:

    cargo build --release -p het-train
    python benches/training_vs_torch.py target/release/het-train [full|scratch|lora] [threads] [rounds]

The two take turns, each step in a process of its own, so that a machine whose speed drifts does not
favour one. Both draw their weights; every token but the first of a sequence is scored.
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
# Configuration, sequences, their tokens, steps a round
CASES = {
    "full": (SMOLLM2, 4, 256, 2),
    "scratch": (GPT, 16, 256, 8),
    "lora": (SMOLLM2, 8, 128, 2),
}


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def torch_steps(case: str, threads: int) -> None:
    """Prints what one process of PyTorch does."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    torch.set_num_threads(threads)
    configuration, batch, length, steps = CASES[case]
    kind = {"llama": LlamaConfig, "gpt2": GPT2Config}[configuration["model_type"]]
    model = AutoModelForCausalLM.from_config(kind(**configuration), dtype=torch.float32)
    if case == "lora":
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
        model = get_peft_model(model, adapter)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4)
    tokens = torch.randint(0, configuration["vocab_size"], (batch, length))
    seconds = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        optimiser.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        seconds.append(time.perf_counter() - began)
    speed = batch * length / statistics.median(seconds[1:])
    print(json.dumps({"tokens_per_s": speed, "peak_bytes": peak_bytes(), "torch": torch.__version__}))


def measured(words: list[str], threads: int) -> dict:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return json.loads(output.stdout.splitlines()[-1])


def het_words(program: str, case: str, directory: str) -> list[str]:
    configuration, batch, length, steps = CASES[case]
    subprocess.run([program, "tiny", "--output", directory], check=True, capture_output=True)
    os.remove(os.path.join(directory, "model.safetensors"))
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(configuration, file)
    method = "lora" if case == "lora" else "full"
    sizes = ["--batch", str(batch), "--seq", str(length), "--scored", str(length - 1)]
    return [program, "bench-step", "--weights", directory, "--from-scratch", "--method", method,
            "--steps", str(steps), *sizes]  # fmt: skip


def main() -> None:
    if sys.argv[1] == "--torch":
        return torch_steps(sys.argv[2], int(sys.argv[3]))
    program = sys.argv[1]
    cases = [sys.argv[2]] if len(sys.argv) > 2 and sys.argv[2] != "all" else list(CASES)
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    print("| training | het-train tokens/s | torch tokens/s | ratio | peak MiB | torch MiB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in cases:
        ours, theirs = [], []
        with tempfile.TemporaryDirectory() as directory:
            words = het_words(program, case, directory)
            for _ in range(rounds):
                ours.append(measured(words, threads))
                torch_words = [sys.executable, __file__, "--torch", case, str(threads)]
                theirs.append(measured(torch_words, threads))
        speeds = [[item["tokens_per_s"] for item in items] for items in (ours, theirs)]
        peaks = [max(item["peak_bytes"] for item in items) / 2**20 for items in (ours, theirs)]
        ratio = statistics.median(a / b for a, b in zip(*speeds))
        print(
            f"| {case} | {statistics.median(speeds[0]):.0f} | {statistics.median(speeds[1]):.0f} "
            f"| {ratio:.2f} | {peaks[0]:.0f} | {peaks[1]:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
