"""Training programs alone and under `het run`: the same mode, the same weights, the same speed?

Five programs as their users start them: torchrun with two workers (DDP over gloo), `accelerate
launch`, `deepspeed`, Lightning with DDP in two processes that it starts itself, and Hugging Face's
`Trainer` with LoRA (PEFT) on a small random model. All train on processors, on two cores, without a
network. With torch, accelerate, deepspeed, lightning, transformers and peft installed:

    cargo build --release -p het-cli
    python benches/launchers.py --het target/release/het [--pairs 5] [--only NAME ...]

Each pair runs a program alone and under `het run`, the first of the two by turns, so that a machine
whose speed drifts favours neither. `speed` is the median over pairs of the time that the training
loop took alone, divided by that under het; `wall` is the same with everything from the start of the
command to its end. `mode` is what the program found of ranks, threads and devices.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CORES = 2
#: Of the state that programs save at their end.
WEIGHTS, FIGURES = "weights.pt", "figures.json"


# What runs in the programs.


def report(out: Path, model, began: float, steps: int, rank: int, world: int) -> None:
    """Rank 0 leaves its weights and figures."""
    seconds = time.perf_counter() - began
    if rank != 0:
        return
    import torch

    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    torch.save(weights, out / WEIGHTS)
    mode = {
        "world": world,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
    }
    figures = {"seconds": seconds, "steps": steps, "mode": mode}
    (out / FIGURES).write_text(json.dumps(figures))


def network():
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024),
        torch.nn.GELU(), torch.nn.Linear(1024, 16),
    )  # fmt: skip


def batches(steps: int, rank: int = 0):
    """The same for everybody who asks for the same rank."""
    import torch

    generator = torch.Generator().manual_seed(7 + rank)
    for _ in range(steps):
        inputs = torch.randn(64, 256, generator=generator)
        yield inputs, inputs[:, :16].tanh()


def loss_of(model, inputs, targets):
    return ((model(inputs) - targets) ** 2).mean()


def train_torchrun(out: Path, steps: int) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    began = time.perf_counter()
    for inputs, targets in batches(steps, rank):
        optimiser.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimiser.step()
    report(out, model.module, began, steps, rank, world)
    dist.destroy_process_group()


def train_accelerate(out: Path, steps: int) -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimiser = accelerator.prepare(model, optimiser)
    began = time.perf_counter()
    for inputs, targets in batches(steps, accelerator.process_index):
        optimiser.zero_grad()
        accelerator.backward(loss_of(model, inputs, targets))
        optimiser.step()
    unwrapped = accelerator.unwrap_model(model)
    report(out, unwrapped, began, steps, accelerator.process_index, accelerator.num_processes)


def train_deepspeed(out: Path, steps: int) -> None:
    import deepspeed
    import torch

    deepspeed.init_distributed("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": 64,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": False},
    }
    model = network()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    began = time.perf_counter()
    for inputs, targets in batches(steps, rank):
        engine.backward(loss_of(engine, inputs, targets))
        engine.step()
    report(out, engine.module, began, steps, rank, world)


def train_lightning(out: Path, steps: int) -> None:
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            return loss_of(self.network, *batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_end(self) -> None:
            world = self.trainer.world_size
            report(out, self.network, self.began, steps, self.global_rank, world)

    both = list(batches(steps * 2))
    tensors = [torch.cat(rows) for rows in zip(*both)]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=64)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), data)


def train_peft(out: Path, steps: int) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback
    from transformers import TrainingArguments, set_seed

    set_seed(1)
    shape = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=512, max_position_embeddings=128,
    )  # fmt: skip
    model = get_peft_model(
        LlamaForCausalLM(shape),
        LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    generator = torch.Generator().manual_seed(7)
    rows = torch.randint(0, 512, (8 * steps, 64), generator=generator)
    data = [{"input_ids": row, "labels": row} for row in rows]

    class Clock(TrainerCallback):
        def on_train_begin(self, *_args, **_named) -> None:
            self.began = time.perf_counter()

    clock = Clock()
    arguments = TrainingArguments(
        output_dir=str(out / "trainer"), per_device_train_batch_size=8, max_steps=steps,
        save_steps=max(steps // 2, 1), use_cpu=True, report_to="none", logging_steps=steps,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock])
    trainer.train()
    report(out, model, clock.began, steps, arguments.process_index, arguments.world_size)


#: The words before this file, what trains, and its steps: about ten seconds on two cores of 2025.
PROGRAMS = {
    "torchrun": (["torchrun", "--nproc-per-node", "2"], train_torchrun, 400),
    "accelerate": (["accelerate", "launch", "--cpu", "--num_processes", "2"], train_accelerate, 600),
    "deepspeed": (["deepspeed", "--num_gpus", "2"], train_deepspeed, 300),
    "lightning": (["python"], train_lightning, 300),
    "peft": (["python"], train_peft, 60),
}


# What runs the programs.


def command(name: str, out: Path, steps: int) -> list[str]:
    words, _, _ = PROGRAMS[name]
    return [*words, os.path.abspath(__file__), "--train", name, "--out", str(out), "--steps", str(steps)]


def under_het(het: str, words: list[str]) -> list[str]:
    return [het, "run", "--quiet", "--devices", f"cpu:{CORES}", "--", *words]


def run(words: list[str], out: Path, home: Path) -> tuple[dict, float]:
    """The figures of a run, and its seconds."""
    out.mkdir(parents=True)
    here = os.path.dirname(sys.executable)
    path = os.pathsep.join([here, os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "HET_HOME": str(home), "HET_LOCK_DIR": str(home)}
    began = time.perf_counter()
    ended = subprocess.run(
        words, env=environment, cwd=out, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    figures = out / FIGURES
    if ended.returncode != 0 or not figures.exists():
        raise SystemExit(f"`{' '.join(words)}` ended with {ended.returncode}:\n{ended.stdout}")
    return json.loads(figures.read_text()), seconds


def difference(one: Path, other: Path) -> float:
    """The largest between two weights."""
    import torch

    one, other = torch.load(one / WEIGHTS), torch.load(other / WEIGHTS)
    assert one.keys() == other.keys(), "not the same model"
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def compare(name: str, het: str, pairs: int, scale: float, scratch: Path) -> dict:
    steps = max(int(PROGRAMS[name][2] * scale), 1)
    speed, wall, weights = [], [], 0.0
    for pair in range(pairs):
        dirs = {side: scratch / f"{name}-{pair}-{side}" for side in ("alone", "het")}
        told = {}
        for side in ("alone", "het") if pair % 2 == 0 else ("het", "alone"):
            words = command(name, dirs[side], steps)
            words = under_het(het, words) if side == "het" else words
            told[side] = run(words, dirs[side], scratch / "home")
        (alone, alone_s), (ours, ours_s) = told["alone"], told["het"]
        speed.append(alone["seconds"] / ours["seconds"])
        wall.append(alone_s / ours_s)
        weights = max(weights, difference(dirs["alone"], dirs["het"]))
        print(
            f"{name} {pair + 1}/{pairs}: alone {alone['seconds']:.2f} s of {alone_s:.2f}, "
            f"het {ours['seconds']:.2f} s of {ours_s:.2f}",
            file=sys.stderr,
        )
        for out in dirs.values():
            shutil.rmtree(out)
    return {
        "name": name,
        "speed": statistics.median(speed),
        "wall": statistics.median(wall),
        "weights": "equal" if weights == 0.0 else f"differ by {weights:.1e}",
        "mode": "same" if alone["mode"] == ours["mode"] else f"{alone['mode']} / {ours['mode']}",
    }


def measure(arguments: argparse.Namespace) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="launchers-"))
    names = arguments.only or list(PROGRAMS)
    print("| program | speed | wall | weights | mode |\n| --- | --- | --- | --- | --- |")
    try:
        for name in names:
            row = compare(name, arguments.het, arguments.pairs, arguments.scale, scratch)
            print(
                f"| {name} | {row['speed']:.3f} | {row['wall']:.3f} | {row['weights']} "
                f"| {row['mode']} |",
                flush=True,
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--het", default="target/release/het", type=os.path.abspath)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS))
    parser.add_argument("--train", choices=list(PROGRAMS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    # Of `deepspeed`.
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is None:
        measure(arguments)
        return
    _, train, _ = PROGRAMS[arguments.train]
    train(arguments.out, arguments.steps)


if __name__ == "__main__":
    main()
