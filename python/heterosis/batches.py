"""Global batches that are the same however many ranks share them.

    batches = heterosis.Batches(len(dataset), batch=64, epochs=3, seed=0)
    for step in range(start, len(batches)):
        optimizer.zero_grad()
        for micro in batches.micro(step, size=8):
            loss = criterion(dataset, micro) * batches.weight(step, micro)
            loss.backward()
        optimizer.step()

The number of the step says all that there is to know: whoever goes on from a checkpoint at another
number of ranks goes on with the sample that comes next, and every sample is seen once an epoch.
"""

from __future__ import annotations

import os
import random
from typing import Iterator, List, Optional, Sequence, Tuple

__all__ = ["Batches"]


class Order:
    """The order of the samples of each epoch: it depends on `seed` and the epoch's number alone."""

    def __init__(self, samples: int, seed: int, shuffle: bool) -> None:
        self.samples = samples
        self._seed, self._shuffle = seed, shuffle
        self._epoch: Optional[int] = None
        self._order: Sequence[int] = ()

    def of(self, epoch: int) -> Sequence[int]:
        if epoch != self._epoch:
            order = list(range(self.samples))
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._epoch, self._order = epoch, order
        return self._order


def place(rank: Optional[int], world: Optional[int]) -> Tuple[int, int]:
    """This rank and how many there are: as told, else as the environment says."""
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} of {world}")
    return rank, world


class Batches:
    """The samples of every step, in equal global batches, and the part of this rank.

    `batch` is the most samples of a step; where it does not divide an epoch, the steps of the epoch
    share its samples as equally as can be. An epoch's order depends on `seed` and its number alone.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        rank: Optional[int] = None,
        world: Optional[int] = None,
    ) -> None:
        if samples < 1 or batch < 1 or epochs < 0:
            raise ValueError("there is at least one sample, and one in a batch")
        self.rank, self.world = place(rank, world)
        self.samples, self.epochs = samples, epochs
        self.steps_per_epoch = -(-samples // batch)
        self._order = Order(samples, seed, shuffle)

    def __len__(self) -> int:
        """Steps of all epochs."""
        return self.steps_per_epoch * self.epochs

    def all(self, step: int) -> List[int]:
        """The samples of a step, of all ranks together."""
        epoch, within = divmod(step, self.steps_per_epoch)
        first = within * self.samples // self.steps_per_epoch
        last = (within + 1) * self.samples // self.steps_per_epoch
        return list(self._order.of(epoch)[first:last])

    def own(self, step: int) -> List[int]:
        """Those of this rank; none where there are more ranks than samples."""
        return self.all(step)[self.rank :: self.world]

    def micro(self, step: int, size: int) -> Iterator[List[int]]:
        """Those of this rank, in batches of at most `size`: as many as gradients are accumulated."""
        own = self.own(step)
        for first in range(0, len(own), size):
            yield own[first : first + size]

    def weight(self, step: int, indices: Sequence[int]) -> float:
        """What the mean loss of some samples counts in the mean over the whole step, where the
        gradients of all ranks are averaged, as `DistributedDataParallel` does."""
        return len(indices) * self.world / len(self.all(step))
