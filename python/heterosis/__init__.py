"""What a training script can say to Heterosis, and hear from it. The standard library is enough.

    import heterosis

    job = heterosis.job()
    start = load(job.resume_from) if job.resume_from else 0
    for step in range(start, steps):
        loss = train(step)
        job.progress(step=step + 1, total=steps, loss=loss)
        stop = job.should_stop(step)
        if stop or job.should_save():
            job.saved(step, save(step))
        if stop:
            job.leave()

Outside Heterosis the same script runs as well: nothing is reported, and SIGTERM asks it to stop.
With `warm: true` in the job file it is started before its devices are free: it calls
`heterosis.wait_for_devices()` after all that needs none, and before `job()`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import List, Mapping, NoReturn, Optional

from .adaptive import AdaptiveBatches
from .batches import Batches
from .warm import wait_for_devices

__all__ = ["AdaptiveBatches", "Batches", "Job", "inputs", "job", "wait_for_devices"]

#: "Saved, call me again": EX_TEMPFAIL of sysexits.h.
EXIT_SAVED = 75

#: Seconds between two checkpoints at the least, and at the most however seldom devices fail.
_SAVE_EVERY_MIN, _SAVE_EVERY_MAX = 10.0, 3600.0

#: Signals that may be chosen for the notice.
_NOTICE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

#: A rank's place on the board of steps: its step + 1, so that 0 says nothing yet.
_PLACE = struct.Struct("<Q")


class Job:
    """The job that this process is a rank of.

    Attributes:
        rank: this process among all of the job's.
        world: how many there are.
        resume_from: the checkpoint to go on from, or None.
        checkpoint_dir: where checkpoints are looked for, or None.
        output: where outputs belong, or None outside Heterosis.
        devices: how many the whole job has at present, or None where that never changes.
        batch_devices: how many its global batch is meant for, likewise.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.rank = int(environment.get("RANK", "0"))
        self.world = int(environment.get("WORLD_SIZE", "1"))
        self.resume_from = _path(environment, "HET_RESUME_FROM")
        self.checkpoint_dir = _path(environment, "HET_CHECKPOINT_DIR")
        self.output = _path(environment, "HET_OUTPUT")
        self.devices = _number(environment, "HET_DEVICE_COUNT")
        self.batch_devices = _number(environment, "HET_BATCH_DEVICES")
        self._progress = _path(environment, "HET_PROGRESS")
        self._notice = _path(environment, "HET_NOTICE")
        every = environment.get("HET_CHECKPOINT_EVERY")
        self._save_every = float(every) if every else None
        lives = environment.get("HET_MEAN_TIME_BETWEEN_FAILURES")
        self._lives = float(lives) if lives else None
        self._save_began: Optional[float] = None
        self._saved_at = time.monotonic()
        self._board: Optional[int] = None
        self._asked = False
        self._hears = False
        self._says = True

    def progress(
        self,
        *,
        step: Optional[int] = None,
        total: Optional[int] = None,
        loss: Optional[float] = None,
        samples: Optional[int] = None,
        tokens: Optional[int] = None,
        message: Optional[str] = None,
        result: Optional[Mapping[str, float]] = None,
        done: Optional[bool] = None,
        measured: Optional[Mapping[str, float]] = None,
    ) -> None:
        """Reports how far the work is; rank 0 speaks for all.

        `samples` and `tokens` count from the start of this process; `result` are named figures of
        the job's report; `done` says that the work is complete even if a stop was asked; `measured`
        says how a step goes, as `AdaptiveBatches.progress` does.
        """
        told = {
            "step": step,
            "total": total,
            "loss": loss,
            "samples": samples,
            "tokens": tokens,
            "message": message,
            "result": None if result is None else dict(result),
            "done": done,
            "measured": None if measured is None else dict(measured),
        }
        self._say({name: value for name, value in told.items() if value is not None})

    def saved(self, step: int, path: "os.PathLike[str] | str") -> None:
        """Acknowledges a checkpoint that is complete on disk: the job goes on from there if it has
        to be started again. Rank 0 speaks for all, so every rank has to have saved by then."""
        self._say({"checkpoint": {"step": step, "path": os.path.abspath(path)}})
        now = time.monotonic()
        if self._save_began is not None and self._lives is not None:
            # Young 1974, with what a save takes instead of what the scheduler had to assume.
            best = math.sqrt(2 * (now - self._save_began) * self._lives)
            self._save_every = min(max(best, _SAVE_EVERY_MIN), _SAVE_EVERY_MAX)
        self._save_began, self._saved_at = None, now

    def should_save(self) -> bool:
        """Whether it is time for a checkpoint although nobody asks for one: as often as the job
        file says, or as devices fail and saves take. For programs of one rank: where several ranks
        have to save the same step, let rank 0 ask and tell the others as it tells them anything."""
        now = time.monotonic()
        if self._save_every is None or now - self._saved_at < self._save_every:
            return False
        self._save_began = now
        return True

    def should_stop(self, step: int) -> bool:
        """Whether to save and leave now, after this step.

        To be asked by every rank after every step, or after the same ones. All ranks hear yes
        after the same step, without a collective, also where some run ahead of others: each puts
        the step that it has finished on a board; the first to be asked settles on the first step
        that nobody has passed, and the others find what was settled.
        """
        self._hear_signals()
        if self.world == 1 or self._notice is None:
            return self._is_asked()
        self._put(step)
        if not self._is_asked():
            return False
        return step >= self._agreed(step)

    def accumulation(self, steps: int = 1) -> int:
        """Batches to accumulate before an update, so that the global batch is that of `steps` such
        batches on as many devices as the job asks for.

        Raises ValueError where no whole number will do; `Batches` divides any global batch.
        """
        if self.devices is None or self.batch_devices is None:
            return steps
        scaled, rest = divmod(steps * self.batch_devices, self.devices)
        if rest or not scaled:
            raise ValueError(
                f"{steps} batches on {self.batch_devices} devices are no whole number on"
                f" {self.devices}: take smaller batches and accumulate more of them"
            )
        return scaled

    def leave(self) -> NoReturn:
        """Ends this process as one that has saved and wants to go on later."""
        sys.stdout.flush()
        sys.exit(EXIT_SAVED)

    def _hear_signals(self) -> None:
        """From the first question on: who never asks dies of a signal as ever."""
        if self._hears or threading.current_thread() is not threading.main_thread():
            return
        self._hears = True
        # Whoever has a handler of its own knows what it does.
        taken = [n for n in _NOTICE_SIGNALS if signal.getsignal(n) is signal.SIG_DFL]
        for number in taken:
            signal.signal(number, self._hear)

        def hold() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, taken)

        def let_go() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)

        def give_back() -> None:
            for number in taken:
                signal.signal(number, signal.SIG_DFL)
            let_go()

        # A forked helper, such as a data loader's worker, is ended by a signal as ever, also by one
        # that comes while it is being born.
        os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=give_back)

    def _hear(self, _number: int, _frame: object) -> None:
        self._asked = True

    def _is_asked(self) -> bool:
        if self._asked or self._notice is None:
            return self._asked
        # Another rank may have been asked by a signal only.
        return self._notice.exists() or self._beside(".asked").exists()

    def _beside(self, suffix: str) -> Path:
        assert self._notice is not None
        return self._notice.with_suffix(suffix)

    def _say(self, line: Mapping[str, object]) -> None:
        if self._progress is None or self.rank != 0 or not line:
            return
        # Numbers of other libraries are numbers.
        text = json.dumps(line, default=float)
        try:
            # One write of a whole line: nothing can come in between.
            with open(self._progress, "ab", buffering=0) as file:
                file.write(text.encode() + b"\n")
        except OSError as error:
            # Work must not end for want of a report.
            if self._says:
                print(f"heterosis: progress cannot be reported: {error}", file=sys.stderr)
            self._says = False

    def _put(self, step: int) -> None:
        if self._board is None:
            path = self._beside(".steps")
            path.parent.mkdir(exist_ok=True)
            self._board = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._board, _PLACE.pack(step + 1), self.rank * _PLACE.size)

    def _agreed(self, step: int) -> int:
        """The step after which all stop. Everybody is asked before the board is read: whoever puts
        a step there later finds that out, and what was settled; what stood there was passed."""
        assert self._board is not None
        settled = self._beside(".agreed")
        if not settled.exists():
            self._beside(".asked").touch()
            board = os.pread(self._board, self.world * _PLACE.size, 0)
            places = [place for (place,) in _PLACE.iter_unpack(board)]
            others = places[: self.rank] + places[self.rank + 1 :]
            draft = self._beside(f".agreed-{self.rank}")
            # A place is the step after the one that was passed.
            draft.write_text(str(max([step, *others])))
            try:
                os.link(draft, settled)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return int(settled.read_text())


def _number(environment: Mapping[str, str], name: str) -> Optional[int]:
    text = environment.get(name)
    return int(text) if text else None


def _path(environment: Mapping[str, str], name: str) -> Optional[Path]:
    text = environment.get(name)
    return Path(text) if text else None


def inputs() -> List[str]:
    """The `inputs` of the job file as they are to be opened, in its order: the copy of one on a disk
    of this machine, where there is one; empty where it names none, and outside Heterosis."""
    text = os.environ.get("HET_INPUTS")
    return text.split("\n") if text else []


_job: Optional[Job] = None


def job() -> Job:
    """The job of this process; the same object however often it is asked for.

    It waits for the devices, as `wait_for_devices` does, where the script has not done so before:
    what the job is told is not known earlier.
    """
    global _job
    if _job is None:
        wait_for_devices()
        _job = Job()
    return _job
