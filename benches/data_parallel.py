"""One training run over processes of unlike speed: what does each of them add?

    cargo build --release -p het-cli -p het-train
    python3 benches/data_parallel.py shares 0.9,0.45 [--rounds 3]
    python3 benches/data_parallel.py throttle
    python3 benches/data_parallel.py link [--rate 400mbit] [--ranks 2]
    python3 benches/data_parallel.py kill [--kills 100]

- `shares` gives each process a part of a core by control groups, and has them train alone, all
  together, and alone again.
- `throttle` halves what one of two processes has while they train, gives it back, then kills it.
- `link` puts ranks into network namespaces behind links of a given rate (`tc tbf`).
- `kill` kills a worker at a random instant of each run, and compares the losses.

All but `kill` want root. A throttled processor stands for a slower device: what it shows is how work
is shared out, not what another kind of device does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: A Llama of 20 million parameters with the tokenizer of bytes.
MODEL = {
    "model_type": "llama", "vocab_size": 259, "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 1024, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip
PERIOD_US = 20_000
#: Between two looks at a process or a file.
LOOK_S = 0.02


class Group:
    """A control group, and the part of a core that its processes have in all."""

    def __init__(self, name: str) -> None:
        old = Path("/sys/fs/cgroup/cpu")
        self.is_old = old.is_dir()
        self.path = (old if self.is_old else Path("/sys/fs/cgroup")) / name
        self.path.mkdir(exist_ok=True)

    def limit(self, cores: float) -> None:
        quota = round(cores * PERIOD_US)
        if not self.is_old:
            return self.write("cpu.max", f"{quota} {PERIOD_US}")
        # Neither may be beyond what the other allows meanwhile.
        self.write("cpu.cfs_quota_us", "-1")
        self.write("cpu.cfs_period_us", str(PERIOD_US))
        self.write("cpu.cfs_quota_us", str(quota))

    def add(self, process: int) -> None:
        self.write("cgroup.procs", str(process))

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)


@contextlib.contextmanager
def groups(shares: list[float]) -> Iterator[list[Group]]:
    made = [Group(f"het-bench-{os.getpid()}-{row}") for row in range(len(shares))]
    try:
        for group, share in zip(made, shares):
            group.limit(share)
        yield made
    finally:
        for group in made:
            with contextlib.suppress(OSError):
                group.path.rmdir()


def workers_of(process: int) -> dict[int, int]:
    """Processes of the workers that a run has started, by their number from 0 on."""
    found = {}
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            with contextlib.suppress(OSError, StopIteration):
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                name = b"HET_TRAIN_WORKER_NUMBER="
                number = next(text for text in variables if text.startswith(name))
                found[int(number.removeprefix(name))] = int(child)
    return found


def wait_until(what: Callable[[], object], run: subprocess.Popen) -> object:
    while not (found := what()):
        if run.poll() is not None:
            sys.exit(f"the run ended with {run.returncode}: {run.stderr.read()}")
        time.sleep(LOOK_S)
    return found


def start(command: list[str], in_groups: list[Group], **variables: str) -> subprocess.Popen:
    """A run of one thread a process, each in its group."""
    first, *others = in_groups
    run = subprocess.Popen(
        [*command, "--workers", str(len(others))], text=True,
        env={**os.environ, "RAYON_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: first.add(os.getpid()),
    )  # fmt: skip
    wait_until(lambda: len(workers_of(run.pid)) == len(others), run)
    for number, worker in workers_of(run.pid).items():
        in_groups[number + 1].add(worker)
    return run


def ended(run: subprocess.Popen) -> str:
    output, errors = run.communicate()
    if run.returncode:
        sys.exit(f"the run ended with {run.returncode}: {errors}")
    return output


def call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def model(program: str, directory: Path) -> Path:
    call(program, "tiny", "--output", directory)
    (directory / "model.safetensors").unlink()
    (directory / "config.json").write_text(json.dumps(MODEL))
    return directory


def tokens(program: str, weights: str | Path, directory: Path) -> Path:
    """Sequences of random words, all of about a hundred tokens of bytes."""
    source = directory / "text"
    source.mkdir()
    draw = random.Random(1)
    words = "a task runs where its data is and the device ends first".split()
    for name, count in ("train", 2000), ("heldout", 32):
        lines = [json.dumps({"text": " ".join(draw.choices(words, k=26))}) for _ in range(count)]
        (source / f"{name}.jsonl").write_text("\n".join(lines))
    call(program, "tokenize", "--input", source, "--output", directory / "data", "--weights", weights)
    return directory / "data"


# What added processes bring.


def shares(options: argparse.Namespace, directory: Path) -> None:
    parts = [float(part) for part in options.shares.split(",")]
    command = [options.trainer, "bench-step", "--weights", str(model(options.trainer, directory)),
               "--from-scratch", "--method", options.method, "--batch", str(options.batch),
               "--seq", "64", "--scored", "63"]  # fmt: skip

    def measured(of: list[Group], steps: int) -> dict:
        return json.loads(ended(start([*command, "--steps", str(steps)], of)))

    print("shares of a core: " + ", ".join(f"{part:g}" for part in parts))
    rows = []
    with groups(parts) as made:

        def alone() -> list[float]:
            return [measured([group], 2)["tokens_per_s"] for group in made]

        before = alone()
        for _ in range(options.rounds):
            line = measured(made, options.steps)
            after = alone()
            own = [(a + b) / 2 for a, b in zip(before, after)]
            together, before = line["tokens_per_s"], after
            meanwhile = sum(item["tokens"] / item["seconds"] for item in line["work"])
            rows.append((together / sum(own), (together - own[0]) / sum(own[1:]), together / meanwhile))
            speeds = " ".join(f"{speed:.0f}" for speed in own)
            of_sum, added, of_meanwhile = rows[-1]
            print(
                f"alone {speeds} tokens/s, together {together:.0f}: {of_sum:.0%} of the sum, added"
                f" bring {added:.0%} of their own, {of_meanwhile:.0%} of the speeds meanwhile",
                flush=True,
            )
    names = "of the sum", "what is added brings of its own", "of the speeds meanwhile"
    middle = [statistics.median(column) for column in zip(*rows)]
    print("medians: " + ", ".join(f"{value:.0%} {name}" for name, value in zip(names, middle)))


# What changes meanwhile.


class Steps:
    """When each step ended, and its loss, by the progress that a run tells."""

    def __init__(self, path: Path) -> None:
        self.path, self.times, self.losses, self.size = path, [], [], 0

    def look(self) -> int:
        with contextlib.suppress(FileNotFoundError), open(self.path) as file:
            file.seek(self.size)
            for line in file:
                if not line.endswith("\n"):
                    break
                self.size += len(line.encode())
                told = json.loads(line)
                if "loss" in told:
                    self.times.append(time.monotonic())
                    self.losses.append(told["loss"])
        return len(self.times)

    def rate(self, first: int, last: int) -> float:
        """Steps a second after the step `first`."""
        return (last - first) / (self.times[last - 1] - self.times[first - 1])


def throttle(options: argparse.Namespace, directory: Path) -> None:
    described = model(options.trainer, directory / "model")
    data = tokens(options.trainer, described, directory)
    # Weights beside which an adapter learns.
    weights = directory / "weights"
    call(options.trainer, "pretrain", "--model", described, "--data", data, "--output", weights,
         "--steps", 1, "--batch", 1, "--samples", 0)  # fmt: skip
    share = 0.8

    def train(name: str, of: list[Group]) -> tuple[subprocess.Popen, Steps]:
        steps = Steps(directory / f"{name}-progress")
        command = [options.trainer, "finetune", "--weights", str(weights), "--data", str(data),
                   "--output", str(directory / name), "--steps", "100000", "--batch",
                   str(options.batch), "--seq", "128", "--checkpoint-every", "0",
                   "--timeline-steps", "0", "--samples", "0"]  # fmt: skip
        return start(command, of, HET_PROGRESS=str(steps.path)), steps

    def pace(run: subprocess.Popen, steps: Steps, settle: int = 10, over: int = 10) -> float:
        """Steps a second once `settle` more are over."""
        first = steps.look() + settle
        wait_until(lambda: steps.look() >= first + over, run)
        return steps.rate(first, first + over)

    with groups([share, share]) as made:

        def alone() -> float:
            run, steps = train("alone", made[:1])
            found = pace(run, steps, settle=2, over=6)
            run.kill()
            return found

        before = alone()
        run, steps = train("together", made)
        both = pace(run, steps)
        made[1].limit(share / 2)
        halved = pace(run, steps)
        made[1].limit(share)
        restored = pace(run, steps)
        known, when = steps.look(), time.monotonic()
        worker = workers_of(run.pid)[0]
        os.kill(worker, signal.SIGKILL)
        # Its successor begins in the group of whoever starts it.
        wait_until(lambda: workers_of(run.pid).get(0, worker) != worker, run)
        made[1].add(workers_of(run.pid)[0])
        wait_until(lambda: steps.look() > known, run)
        lost = steps.times[known] - when
        again = pace(run, steps)
        run.kill()
        one = (before + alone()) / 2
    print(f"alone {one:.3f} steps a second with {share:g} cores; from the tenth step after each on:")
    for name, found, ideal in (
        ("two", both, 2 * one), ("one of them with half", halved, 1.5 * one),
        ("all of it again", restored, 2 * one), ("killed and back", again, 2 * one),
    ):  # fmt: skip
        print(f"{name}: {found:.3f} steps a second, {found / ideal:.0%} of {ideal:.3f}")
    print(f"the step in which it was killed ended after {lost * both:.1f} steps' time")


# Copies over a link.


@contextlib.contextmanager
def hosts(count: int, rate: str) -> Iterator[list[list[str]]]:
    """Words before a command that run it on each host, 10.77.0.1 and on; all behind one switch."""
    bridge = f"hb{os.getpid()}"[:15]
    names = [f"{bridge}-{row}" for row in range(count)]
    limit = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
    try:
        call("ip", "link", "add", bridge, "type", "bridge")
        call("ip", "link", "set", bridge, "up")
        for row, name in enumerate(names):
            outer, inner = f"{bridge}o{row}"[-15:], f"{bridge}i{row}"[-15:]
            call("ip", "netns", "add", name)
            call("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            call("ip", "link", "set", inner, "netns", name)
            call("ip", "link", "set", outer, "master", bridge, "up")
            inside = ("ip", "netns", "exec", name)
            call(*inside, "ip", "addr", "add", f"10.77.0.{row + 1}/24", "dev", inner)
            call(*inside, "ip", "link", "set", inner, "up")
            call(*inside, "ip", "link", "set", "lo", "up")
            call(*inside, "tc", "qdisc", "add", "dev", inner, *limit)
            call("tc", "qdisc", "add", "dev", outer, *limit)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def link(options: argparse.Namespace, directory: Path) -> None:
    data = tokens(options.trainer, options.weights, directory)
    output = directory / "adapter"
    command = [options.trainer, "finetune", "--weights", options.weights, "--data", str(data),
               "--output", str(output), "--steps", str(options.steps), "--batch",
               str(options.batch), "--seq", "128", "--checkpoint-every", "0", "--samples", "0",
               "--checkpoint-dir", str(directory / "checkpoints")]  # fmt: skip
    with hosts(options.ranks, options.rate) as inside:
        runs = []
        for rank, before in enumerate(inside):
            variables = {"WORLD_SIZE": options.ranks, "RANK": rank, "MASTER_ADDR": "10.77.0.1",
                         "MASTER_PORT": 29500, "RAYON_NUM_THREADS": 1}  # fmt: skip
            words = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            runs.append(subprocess.Popen([*before, *words], **quiet))
        told = [run.communicate()[1] for run in runs]
    print(told[0].strip().splitlines()[-1])
    subprocess.run([options.het, "profile", "show", str(output / "timeline.json")], check=True)


# Workers that are killed.


def kill(options: argparse.Namespace, directory: Path) -> None:
    call(options.trainer, "tiny", "--output", directory / "weights")
    data = tokens(options.trainer, directory / "weights", directory)
    draw = random.Random(options.seed)

    def train(name: str, workers: int, instant: float | None) -> tuple[list[float], float]:
        """Its losses, and the seconds that it took."""
        steps = Steps(directory / f"{name}-progress")
        steps.path.unlink(missing_ok=True)
        words = [options.trainer, "finetune", "--weights", str(directory / "weights"), "--data",
                 str(data), "--output", str(directory / name), "--steps", "60", "--batch", "12",
                 "--seq", "64", "--workers", str(workers), "--checkpoint-every", "0"]  # fmt: skip
        variables = {**os.environ, "HET_PROGRESS": str(steps.path)}
        began = time.monotonic()
        run = subprocess.Popen(words, env=variables, text=True, stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL)  # fmt: skip
        if instant is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(instant)
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(draw.choice(list(workers_of(run.pid).values())), signal.SIGKILL)
                kills.append(instant)
        told = run.communicate()[1]
        took = time.monotonic() - began
        if run.returncode:
            sys.exit(f"a run whose worker was killed after {instant} s failed: {told}")
        steps.look()
        return steps.losses, took

    kills: list[float] = []
    expected, _ = train("alone", 0, None)
    _, span = train("shared", 2, None)
    worst = 0.0
    runs = 0
    # A run that ended before its instant, or whose workers had not begun, counts for nothing.
    while len(kills) < options.kills:
        runs += 1
        found, span = train("killed", 2, draw.uniform(0, span))
        if len(found) != len(expected):
            sys.exit(f"{len(found)} steps, not {len(expected)}")
        worst = max(worst, *(abs(a - b) / b for a, b in zip(found, expected)))
    print(
        f"{len(kills)} of {runs} runs had a worker killed; all ended, and no loss of any step is further"
        f" than {worst:.1e} from that of one process"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--het", default="target/release/het")
    parser.add_argument("--trainer", default="target/release/het-train")
    cases = parser.add_subparsers(required=True)
    case = cases.add_parser("shares")
    case.add_argument("shares", help="parts of a core, the first process's first: 0.9,0.45")
    case.add_argument("--rounds", type=int, default=3)
    case.add_argument("--steps", type=int, default=12)
    case.add_argument("--batch", type=int, default=64)
    case.add_argument("--method", default="lora", choices=["lora", "full"])
    case.set_defaults(run=shares)
    case = cases.add_parser("throttle")
    case.add_argument("--batch", type=int, default=48)
    case.set_defaults(run=throttle)
    case = cases.add_parser("link")
    case.add_argument("--rate", default="400mbit")
    case.add_argument("--ranks", type=int, default=2)
    case.add_argument("--steps", type=int, default=10)
    case.add_argument("--batch", type=int, default=16)
    case.add_argument("--weights", default="smollm2-135m")
    case.set_defaults(run=link)
    case = cases.add_parser("kill")
    case.add_argument("--kills", type=int, default=100)
    case.add_argument("--seed", type=int, default=1)
    case.set_defaults(run=kill)
    options = parser.parse_args()
    if options.run is not kill and os.geteuid() != 0:
        sys.exit("control groups and network namespaces want root: run it with sudo")
    with tempfile.TemporaryDirectory() as directory:
        options.run(options, Path(directory))


if __name__ == "__main__":
    main()
