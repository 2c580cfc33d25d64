"""Training programs that are killed and preempted under `het`: how many steps do they lose?

The five of `launchers.py`, each saving as its framework does, every ten steps. One run is killed
(SIGKILL to the process that trains, after a random step) and started again by `retries`; another is
preempted by an urgent job after a random step. Where they save is found without a `checkpoint:` line
but for the plain script under torchrun, whose own format nobody knows; where they go on from is
`HET_RESUME_FROM`. A run passes if what it did again is no more
than the steps since its own last save, and if it ends with as many steps as it was to make.

    cargo build --release -p het-cli
    python benches/interrupted.py --het target/release/het [--seed 1] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, EVERY, PAUSE_S = 120, 10, 0.05
#: What the first rank notes: a line for each step, `ATTEMPT STEP`.
NOTES = "steps.txt"


# What runs in the programs.


def note(step: int) -> None:
    """One step more is done; also the process that did it, for whoever kills it."""
    with open(NOTES, "a") as notes:
        notes.write(f"{os.environ['HET_ATTEMPT']} {step} {os.getpid()}\n")
    time.sleep(PAUSE_S)


def resumed() -> str | None:
    return os.environ.get("HET_RESUME_FROM")


def network():
    import torch

    torch.manual_seed(1)
    return torch.nn.Linear(64, 16)


def loss_of(model, inputs):
    return ((model(inputs) - inputs[:, :16]) ** 2).mean()


def batch():
    import torch

    return torch.randn(32, 64)


def train_torchrun() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimiser = torch.optim.AdamW(model.parameters())
    first = 1
    if path := resumed():
        state = torch.load(Path(path) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["step"] + 1
    for step in range(first, STEPS + 1):
        optimiser.zero_grad()
        loss_of(model, batch()).backward()
        optimiser.step()
        if rank == 0:
            note(step)
            if step % EVERY == 0:
                state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
                saved = Path(os.environ["HET_CHECKPOINT_DIR"])
                draft, place = saved / f"draft-{step}", saved / f"checkpoint-{step}"
                draft.mkdir(exist_ok=True)
                torch.save({**state, "step": step}, draft / "state.pt")
                draft.rename(place)
    dist.destroy_process_group()


def train_accelerate() -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimiser = torch.optim.AdamW(model.parameters())
    model, optimiser = accelerator.prepare(model, optimiser)
    first = 1
    if path := resumed():
        accelerator.load_state(path)
        first = int(path.rsplit("_", 1)[1]) + 1
    for step in range(first, STEPS + 1):
        optimiser.zero_grad()
        accelerator.backward(loss_of(model, batch()))
        optimiser.step()
        note(step)
        if step % EVERY == 0:
            accelerator.save_state(f"step_{step}")


def train_deepspeed() -> None:
    import deepspeed
    import torch

    deepspeed.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": False},
    }
    model = network()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    first = 1
    if path := resumed():
        place = Path(path)
        engine.load_checkpoint(str(place.parent), tag=place.name)
        first = engine.global_steps + 1
    for step in range(first, STEPS + 1):
        engine.backward(loss_of(engine, batch()))
        engine.step()
        if torch.distributed.get_rank() == 0:
            note(step)
        if step % EVERY == 0:
            engine.save_checkpoint("saved")


def train_lightning() -> None:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, rows, _):
            return loss_of(self.network, rows[0])

        def on_train_batch_end(self, *_args) -> None:
            if self.global_rank == 0:
                note(self.trainer.global_step)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(STEPS * 2 * 32, 64)), batch_size=32
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath="saved", every_n_train_steps=EVERY, save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(Module(), data, ckpt_path=resumed())


def train_peft() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback
    from transformers import TrainingArguments, set_seed

    set_seed(1)
    shape = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, max_position_embeddings=64,
    )  # fmt: skip
    model = get_peft_model(
        LlamaForCausalLM(shape),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    rows = torch.randint(0, 128, (4 * STEPS, 16))
    data = [{"input_ids": row, "labels": row} for row in rows]

    class Notes(TrainerCallback):
        def on_step_end(self, _arguments, state, _control, **_named) -> None:
            note(state.global_step)

    arguments = TrainingArguments(
        output_dir="out", max_steps=STEPS, save_steps=EVERY, per_device_train_batch_size=4,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Notes()])
    trainer.train(resume_from_checkpoint=resumed())


HERE = os.path.abspath(__file__)
BIN = os.path.dirname(sys.executable)
#: What trains, and the words that start it.
PROGRAMS = {
    "torchrun": (train_torchrun, [f"{BIN}/torchrun", "--nproc-per-node", "2", HERE]),
    "accelerate": (train_accelerate, [f"{BIN}/accelerate", "launch", "--cpu", HERE]),
    "deepspeed": (train_deepspeed, [f"{BIN}/deepspeed", "--num_accelerators", "2", HERE]),
    "lightning": (train_lightning, [sys.executable, HERE]),
    "peft": (train_peft, [sys.executable, HERE]),
}


# What watches them.


class Het:
    def __init__(self, het: str, home: Path) -> None:
        self.het = het
        self.environment = {
            **os.environ, "HET_HOME": str(home), "HET_LOCK_DIR": str(home), "NO_COLOR": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }  # fmt: skip

    def __call__(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.het, *words], env=self.environment, cwd=cwd, text=True, capture_output=True
        )

    def submit(self, cwd: Path, file: str) -> str:
        done = self("submit", file, "-o", "json", cwd=cwd)
        if done.returncode != 0:
            sys.exit(f"{file}: {done.stderr}")
        return str(json.loads(done.stdout)["id"])


def notes(cwd: Path) -> list[tuple[int, int, int]]:
    """Attempt, step and process of each step that was made. The last line may be half a one."""
    path = cwd / NOTES
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [tuple(int(word) for word in line.split()) for line in lines]


def wait_for_step(cwd: Path, step: int) -> tuple[int, int, int]:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        made = notes(cwd)
        if made and made[-1][1] >= step:
            return made[-1]
        time.sleep(0.01)
    sys.exit(f"{cwd.name}: step {step} did not come within 300 s")


def job_file(name: str, words: list[str]) -> str:
    job = {
        "name": name, "priority": "low", "kind": "train", "devices": "cpu:2", "retries": 1,
        "run": words, "env": {"HET_INTERRUPTED": name},
    }  # fmt: skip
    if name == "torchrun":
        job["checkpoint"] = {"dir": "saved"}
    return json.dumps(job)


def interrupted(het: Het, name: str, how: str, at: int, scratch: Path) -> dict:
    cwd = scratch / f"{name}-{how}"
    cwd.mkdir()
    (cwd / "job.yaml").write_text(job_file(name, PROGRAMS[name][1]))
    (cwd / "urgent.yaml").write_text(
        json.dumps({
            "name": "urgent", "priority": "urgent", "devices": "cpu:2", "run": ["sleep", "1"],
        })
    )  # fmt: skip
    job = het.submit(cwd, "job.yaml")
    _, _, process = wait_for_step(cwd, at)
    if how == "killed":
        os.kill(process, signal.SIGKILL)
    else:
        het.submit(cwd, "urgent.yaml")
    code = het("wait", "--timeout", "300s", job).returncode
    made = notes(cwd)
    last = max((step for attempt, step, _ in made if attempt == 1), default=0)
    again = [step for attempt, step, _ in made if attempt > 1]
    first = min(again, default=None)
    # A step is noted before it is saved: at its last step a program may not have come to that.
    saved = last // EVERY * EVERY
    starts = {saved + 1, last - EVERY + 1} if last == saved else {saved + 1}
    told = het("describe", job).stdout
    lost = next((line.strip() for line in told.splitlines() if "lost" in line), "")
    fine = code == 0 and first in starts and max(again) == STEPS
    return {
        "program": name, "how": how, "last": last, "saved": saved, "resumed at": first,
        "code": code, "as it should": fine, "told": lost,
    }  # fmt: skip


def main() -> None:
    if name := os.environ.get("HET_INTERRUPTED"):
        return PROGRAMS[name][0]()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--het", default="target/release/het", type=os.path.abspath)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=PROGRAMS, default=list(PROGRAMS))
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        het = Het(arguments.het, Path(scratch) / "home")
        for name in arguments.only:
            for how in ("killed", "preempted"):
                at = draw.randint(15, STEPS - 30)
                rows.append(interrupted(het, name, how, at, Path(scratch)))
                print(json.dumps(rows[-1]), flush=True)
        het("server", "stop")
    sys.exit(0 if all(row["as it should"] for row in rows) else 1)


if __name__ == "__main__":
    main()
