"""Global batches that follow the noise of the gradient: `elastic: {…, batch: {min, max}}`.

    batches = heterosis.AdaptiveBatches(len(dataset), micro=8, epochs=3, seed=0)
    batches.watch(model)
    if job.resume_from:
        batches.restore(saved["batches"])
    for step in batches:
        optimizer.zero_grad()
        for micro in step.micro():
            loss = criterion(dataset, micro) * step.weight(micro)
            loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * step.gain
        optimizer.step()
        job.progress(**batches.progress())

A large batch makes good use of many devices, and each of its samples teaches less than one of a
small batch; how much less depends on the noise of the gradient (McCandlish et al. 2018, "An
Empirical Model of Large-Batch Training"). A step of `s` times the least batch counts as
`gain = (noise + 1) / (noise / s + 1)` steps of the least one, and may have a learning rate that many
times as high (Johnson et al. 2020, "AdaScale SGD"). The batch is the one that counts most a second
where a step takes `rest + s * compute` seconds: `s = sqrt(noise * rest / compute)`.

Gradients are read between micro-batches: each has to be trained on before the next is asked for, and
they are clipped after the last.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .batches import Order, place

__all__ = ["AdaptiveBatches", "Step"]

#: Noise and times are measured in the first steps, and in every so many after them.
_MEASURED_FIRST, _MEASURED_EVERY = 4, 8

#: What an older measurement counts beside the one after it.
_KEPT = 0.95

#: A batch is at most so many times the one before, and no change smaller than this is made.
_GROWTH, _CHANGE_MIN = 2.0, 0.1

#: The mean of each figure over all ranks.
Mean = Callable[[List[float]], List[float]]


class AdaptiveBatches:
    """The steps that are left, each with a global batch of between `batch[0]` and `batch[1]`.

    `samples` are dealt in the order of their epoch, each once; no batch reaches beyond an epoch.
    Training ends when its steps count as much as `epochs` in batches of the least size. A rank takes
    at most `micro` samples at once. The range is the job file's where that says one, else `batch`.

    A rank has at least one sample of each step: the least batch is one of at least as many samples
    as there are ranks.

    With `DistributedDataParallel`, or with one rank and any module of PyTorch, `watch` is all that
    noise needs. Other programs give squared norms to `observe`, and, where there are several ranks,
    `mean`, which averages a list of figures over all of them.
    """

    def __init__(
        self,
        samples: int,
        *,
        micro: int,
        batch: Optional[Tuple[int, int]] = None,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        rank: Optional[int] = None,
        world: Optional[int] = None,
        mean: Optional[Mean] = None,
    ) -> None:
        self.least, self.most = _range(batch)
        if micro < 1 or epochs < 0:
            raise ValueError("there is at least one sample at once")
        self.rank, self.world = place(rank, world)
        if self.world > min(samples, self.least):
            raise ValueError(
                f"{self.world} ranks cannot share a batch of {self.least} of {samples} samples: make"
                " the least batch larger, or train on fewer devices"
            )
        self.samples, self.epochs, self.at_once = samples, epochs, micro
        #: Samples of the next step.
        self.batch = self.least
        #: What the steps so far count, in steps of the least batch, and what all will count.
        self.done, self.total = 0.0, epochs * samples / self.least
        self._order = Order(samples, seed, shuffle)
        self._position = self._first = self._steps = 0
        self._noise, self._times = _Noise(), _Times()
        self._mean, self._model = mean, None
        self._step: Optional[Step] = None

    @property
    def noise(self) -> Optional[float]:
        """Variance of the gradient of a least batch over the square of its mean."""
        return self._noise.at(self.least)

    def watch(self, model: Any) -> None:
        """Measures the gradients of a module of PyTorch. `DistributedDataParallel` exchanges them
        once a step then, after the last micro-batch."""
        self._model = _Model(model, self.rank, self.world)
        if self._mean is None and self.world > 1:
            self._mean = self._model.mean

    def observe(self, small: float, large: float) -> None:
        """Squared norms of two gradients of the present step: the mean over the samples of this
        rank, with one rank over those of its first micro-batch; and the mean over all samples.
        Wanted where `step.is_measured` says so."""
        if self._step is None:
            raise RuntimeError("there is no step yet: call `observe` inside the loop over steps")
        self._step.squares = (small, large)

    def __iter__(self) -> Iterator["Step"]:
        while True:
            self._learn()
            if self.done >= self.total:
                return
            self._step = Step(self)
            yield self._step

    def progress(self) -> Dict[str, object]:
        """What `Job.progress` is told after a step."""
        step, told = self._step, {}
        if step is not None:
            step.extend()
        if step is not None and self._times.is_known and self.noise is not None:
            told["measured"] = self._measured(len(step.own))
        total = math.ceil(self.total)
        return {
            "step": min(int(self.done), total),
            "total": total,
            "samples": self._position - self._first,
            **told,
        }

    def state(self) -> Dict[str, object]:
        """What a checkpoint has to hold of this: JSON will do."""
        return {
            "samples": self.samples,
            "least": self.least,
            "position": self._position,
            "steps": self._steps,
            "done": self.done,
            "batch": self.batch,
            "noise": self._noise.state(),
            "times": self._times.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, whatever the number of ranks and the range were then.

        Raises ValueError where it is of another number of samples.
        """
        if state["samples"] != self.samples:
            raise ValueError(
                f"the checkpoint is of a training on {state['samples']} samples, not {self.samples}"
            )
        self._position = self._first = int(state["position"])
        self._steps = int(state["steps"])
        self.done = float(state["done"]) * state["least"] / self.least
        self.batch = min(max(int(state["batch"]), self.least), self.most)
        self._noise, self._times = _Noise(*state["noise"]), _Times(*state["times"])

    def gain(self, size: int) -> float:
        """What a step of so many samples counts, in steps of the least batch."""
        scale, noise = size / self.least, self.noise
        return scale if noise is None else (noise + 1) / (noise / scale + 1)

    def _is_measured(self) -> bool:
        return self._steps < _MEASURED_FIRST or self._steps % _MEASURED_EVERY == 0

    def _deal(self) -> Sequence[int]:
        """The samples of the next step, of all ranks: the rest of an epoch in equal batches. An end
        that is too small for all ranks, after a restart with more of them, takes in the beginning of
        the next."""
        epoch, within = divmod(self._position, self.samples)
        rest = self.samples - within
        batch = self.batch
        if not self._times.is_known:
            # Of a single sample it cannot be told what does not grow with them.
            batch = max(batch, min(2 * self.world, self.most))
        count = max(min(-(-rest // batch), rest // self.world), 1)
        size = max(-(-rest // count), self.world)
        samples = list(self._order.of(epoch)[within : within + size])
        if size > rest:
            samples += self._order.of(epoch + 1)[: size - rest]
        return samples

    def _complete(self, step: "Step") -> None:
        self._position += len(step.all)
        self._steps += 1
        self.done += step.gain

    def _learn(self) -> None:
        """Takes in what the last step showed, and chooses the next batch: alike on every rank."""
        step, self._step = self._step, None
        if step is None:
            return
        if step.ended is None:
            raise RuntimeError(
                "a step was left before its last micro-batch: take all that `step.micro()` gives"
            )
        if not step.is_measured:
            return
        small, large = step.squares or (math.nan, math.nan)
        figures = [small, large, step.per_sample, step.rest()]
        small, large, per_sample, rest = self._average(figures)
        size = len(step.all)
        small_size = size / self.world if self.world > 1 else step.first
        if small > 0.0 and large > 0.0:
            self._noise.add((small, small_size), (large, size))
        self._times.add(per_sample, rest)
        noise = self.noise
        if noise is None or not self._times.is_known or self._steps < _MEASURED_FIRST:
            return
        best = self._times.best_scale(noise, self.least / self.world) * self.least
        best = min(max(best, self.least), self.most, _GROWTH * self.batch)
        if abs(best / self.batch - 1) > _CHANGE_MIN:
            self.batch = round(best)

    def _average(self, figures: List[float]) -> List[float]:
        if self.world == 1:
            return figures
        if self._mean is None:
            raise RuntimeError(
                "batches of several ranks have to be the same size: call `watch` with the"
                " DistributedDataParallel module, or give `mean`"
            )
        return self._mean(figures)

    def _measured(self, own: int) -> Dict[str, float]:
        parts = max(-(-own // self.at_once), 1)
        at_once = -(-own // parts)
        devices = int(os.environ.get("HET_DEVICE_COUNT") or self.world)
        compute = self._times.per_sample * at_once
        return {
            "batch": max(1, round(at_once * self.world / devices)),
            "accumulation": parts - 1,
            "step_s": compute + self._times.rest,
            "exchange_s": self._times.rest,
            "gradient_noise": self.noise or 0.0,
        }


class Step:
    """A step of training: one update of the weights.

    Attributes:
        all: its samples, of all ranks together.
        own: those of this rank, at least one.
        gain: what it counts, in steps of the least batch: a learning rate may be that many times as
            high.
        is_measured: it shows times and noise.
    """

    def __init__(self, batches: AdaptiveBatches) -> None:
        self._batches = batches
        self.all = list(batches._deal())
        self.own = self.all[batches.rank :: batches.world]
        self.gain = batches.gain(len(self.all))
        self.is_measured = batches._is_measured()
        self.squares: Optional[Tuple[float, float]] = None
        #: Samples of the first micro-batch; seconds of a sample; when the step began and ended.
        self.first, self.per_sample = 0, math.nan
        self.began: Optional[float] = None
        self.ended: Optional[float] = None

    def weight(self, indices: Sequence[int]) -> float:
        """What the mean loss of some samples counts in the mean over the whole step, where the
        gradients of all ranks are averaged, as `DistributedDataParallel` does."""
        return len(indices) * self._batches.world / len(self.all)

    def micro(self) -> Iterator[List[int]]:
        """The samples of this rank, as many at once as it takes. The step counts once it was given
        the last of them and asked for more."""
        if self.began is not None:
            raise RuntimeError("the micro-batches of a step are dealt once")
        model = self._batches._model
        parts = self._parts()
        self.first, small = len(parts[0]) if parts else 0, math.nan
        self.began, taken = self._now(), 0
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            if model is not None:
                model.begin(is_last, self.is_measured)
            yield part
            if self.is_measured and not is_last:
                taken += len(part)
                self.per_sample = (self._now() - self.began) / taken
                if number == 0 and model is not None and self._batches.world == 1:
                    small = model.square() / self.weight(part) ** 2
        self.ended = self._now()
        if self.is_measured and model is not None and self.own:
            if self._batches.world > 1:
                small = model.local_square / self.weight(self.own) ** 2
            self.squares = (small, model.square())
        self._batches._complete(self)

    def extend(self) -> None:
        """What was done until now, such as the update of the weights, is part of the step."""
        if self.ended is not None:
            self.ended = self._now()

    def rest(self) -> float:
        """Seconds of the step that do not grow with its samples."""
        assert self.began is not None and self.ended is not None
        return max(self.ended - self.began - self.per_sample * len(self.own), 0.0)

    def _parts(self) -> List[List[int]]:
        """In equal parts; at least two where times are measured."""
        own, at_once = self.own, self._batches.at_once
        count = max(-(-len(own) // at_once), 2 if self.is_measured and len(own) > 1 else 0)
        bounds = [number * len(own) // count for number in range(count + 1)] if count else []
        return [own[first:end] for first, end in zip(bounds, bounds[1:])]

    def _now(self) -> float:
        # What was asked of an accelerator is not done yet.
        if self.is_measured and self._batches._model is not None:
            self._batches._model.synchronize()
        return time.monotonic()


class _Noise:
    """Unbiased estimates of the square of the mean gradient and of the variance of a sample's
    (McCandlish et al. 2018, appendix A.1), averaged over measurements."""

    def __init__(
        self, square: float = 0.0, variance: float = 0.0, spread: float = 0.0, weight: float = 0.0
    ) -> None:
        #: Sums over measurements, later ones weigh more; `spread` of the squares of `square`.
        self._square, self._variance, self._spread = square, variance, spread
        self._weight = weight

    def add(self, small: Tuple[float, float], large: Tuple[float, float]) -> None:
        """Squared norms of the gradients of a small and a large batch, each with its samples."""
        (small_square, few), (large_square, many) = small, large
        if not few < many or not math.isfinite(small_square + large_square):
            return
        square = (many * large_square - few * small_square) / (many - few)
        variance = (small_square - large_square) / (1 / few - 1 / many)
        self._square = _KEPT * self._square + square
        self._variance = _KEPT * self._variance + variance
        self._spread = _KEPT * self._spread + square * square
        self._weight = _KEPT * self._weight + 1

    def at(self, batch: int) -> Optional[float]:
        """Noise of a batch of so many samples, and no more of it than can be told: the square of the
        mean gradient is taken to be a standard error larger than it was measured. None before there
        is such an error."""
        if self._weight <= 1:
            return None
        square = self._square / self._weight
        error = math.sqrt(max(self._spread / self._weight - square * square, 0.0) / self._weight)
        square = max(square, 0.0) + error
        if square <= 0.0:
            return None
        return max(self._variance, 0.0) / self._weight / batch / square

    def state(self) -> List[float]:
        return [self._square, self._variance, self._spread, self._weight]


class _Times:
    """Seconds that a sample takes on a rank, and those of a step that do not grow with them."""

    def __init__(self, per_sample: float = 0.0, rest: float = 0.0, is_known: bool = False) -> None:
        self.per_sample, self.rest, self.is_known = per_sample, rest, is_known

    def add(self, per_sample: float, rest: float) -> None:
        if not math.isfinite(per_sample + rest) or per_sample <= 0:
            return
        kept = _KEPT if self.is_known else 0.0
        self.per_sample = kept * self.per_sample + (1 - kept) * per_sample
        self.rest = kept * self.rest + (1 - kept) * rest
        self.is_known = True

    def best_scale(self, noise: float, samples: float) -> float:
        """By which a batch of so many samples a rank has to be multiplied to count most a second."""
        return math.sqrt(noise * self.rest / (self.per_sample * samples))

    def state(self) -> List[float]:
        return [self.per_sample, self.rest, self.is_known]


class _Model:
    """The gradients of a module of PyTorch."""

    def __init__(self, model: Any, rank: int, world: int) -> None:
        # Whoever has a module has imported it.
        self._torch = sys.modules["torch"]
        parallel = self._torch.nn.parallel.DistributedDataParallel
        self._parallel = model if isinstance(model, parallel) else None
        if self._parallel is None and world > 1:
            raise TypeError(
                f"{type(model).__name__} keeps the gradients of {world} ranks to itself: watch a"
                " DistributedDataParallel module, or call `observe` and give `mean`"
            )
        self._group = getattr(self._parallel, "process_group", None)
        if self._parallel is not None:
            found = (self._torch.distributed.get_rank(self._group), self._group.size())
            if found != (rank, world):
                raise ValueError(
                    f"the module is rank {found[0]} of {found[1]}, the batches are those of rank"
                    f" {rank} of {world}: give AdaptiveBatches `rank` and `world` of its group"
                )
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        if not self._parameters:
            raise ValueError("the module has nothing to train: no parameter requires a gradient")
        self._device = self._parameters[0].device
        self._is_measured = False
        #: Squared norm of the gradient of this rank alone.
        self.local_square = 0.0
        if self._parallel is not None:
            self._parallel.register_comm_hook(None, self._exchange)

    def begin(self, is_last: bool, is_measured: bool) -> None:
        """Before each micro-batch."""
        self.local_square, self._is_measured = 0.0, is_measured
        if self._parallel is not None:
            self._parallel.require_backward_grad_sync = is_last

    def square(self) -> float:
        """Squared norm of the gradient as it is now."""
        gradients = [one.grad for one in self._parameters if one.grad is not None]
        return float(sum(gradient.float().pow(2).sum() for gradient in gradients))

    def mean(self, figures: List[float]) -> List[float]:
        told = self._torch.tensor(figures, device=self._device)
        self._torch.distributed.all_reduce(told, group=self._group)
        return (told / self._group.size()).tolist()

    def synchronize(self) -> None:
        if self._device.type != "cpu":
            getattr(self._torch, self._device.type).synchronize()

    # Without types: PyTorch wants its own there.
    def _exchange(self, _state, bucket):  # type: ignore[no-untyped-def]
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        if self._is_measured:
            self.local_square += float(bucket.buffer().float().pow(2).sum())
        return allreduce_hook(self._group, bucket)


def _range(batch: Optional[Tuple[int, int]]) -> Tuple[int, int]:
    told = [os.environ.get(name) for name in ("HET_BATCH_MIN", "HET_BATCH_MAX")]
    if all(told):
        batch = (int(told[0] or 0), int(told[1] or 0))
    if batch is None:
        raise ValueError(
            "how large a batch may be is not known: write `elastic: {…, batch: {min, max}}` in the"
            " job file, or give `batch=(min, max)`"
        )
    least, most = batch
    if not 1 <= least <= most:
        raise ValueError(f"{least} to {most} is no range of batches")
    return least, most
