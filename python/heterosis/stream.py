"""A stream of shards between two stages of a job: `follows: [a]` in the job file.

    # stage `a`                                 # the stage that follows it
    with ShardWriter(job.output) as shards:     for number, path in read_shards("{stage.a.output}"):
        for batch in batches:                       train(path.read_bytes())
            shards.write(tokenised(batch))          acknowledge(path.parent, number, reader="train")

Shards are numbered files that are renamed into place, so a reader never sees half of one. Both sides
may be stopped and started again: a writer goes on with the first shard that is missing, a reader
names the shard that it goes on after. A writer that is told how far it may be ahead waits for its
readers to acknowledge.

Where a stage has several ranks, all write and all read the same stream: shard `n` is written by rank
`n % world`, so every rank writes each `world`-th batch, as many as the others or one less than those
before it. Every rank sees every shard, and acknowledges all, also those that it left to others.
A shard may be removed once every reader has acknowledged it: a restarted writer writes any other
that is missing.

Programs that know nothing of this follow the same rules by themselves: a shard is any file in the
directory whose name does not begin with `.` or `_`, and `_SUCCESS` is there once no further one will
come.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import Iterator, Optional, Sequence, Tuple, Union

__all__ = ["ShardWriter", "acknowledge", "read_shards"]

_END = "_SUCCESS"
_PREFIX, _SUFFIX = "shard-", ".bin"
#: Seconds between two looks for what another process does.
_LOOK_EVERY = 0.05

_PathLike = Union[str, "os.PathLike[str]"]


class ShardWriter:
    """Writes numbered shards, from the first of this rank's that does not lie there.

    Attributes:
        number: of the next shard among those of all ranks: a restarted writer skips the batches
            before it, of which it would have written each `world`-th.
    """

    def __init__(
        self,
        directory: _PathLike,
        *,
        ahead_max: Optional[int] = None,
        readers: Sequence[str] = ("default",),
        rank: Optional[int] = None,
        world: Optional[int] = None,
    ) -> None:
        """`ahead_max` shards at the most may wait to be acknowledged by each of `readers`. Which of
        how many writers this is, the environment says unless it is given."""
        if ahead_max is not None and ahead_max < 1:
            raise ValueError(f"ahead_max is {ahead_max}: at least one shard has to fit")
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._ahead_max = ahead_max
        self._readers = tuple(readers)
        own, self._world = _place(rank, world)
        there = set(_numbers(self._directory))
        # What every reader is done with was written, also where it was removed since.
        written = self._acknowledged_by_all()
        # The first number of this rank's from there on.
        self.number = written + (own - written) % self._world
        while self.number in there:
            self.number += self._world

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do: that no further shard will come is told once the stage has succeeded."""

    def write(self, data: bytes) -> Path:
        """Publishes a shard, and waits before that where it would be too far ahead."""
        while self._is_too_far_ahead():
            time.sleep(_LOOK_EVERY)
        path = _shard(self._directory, self.number)
        _replace(path, data)
        self.number += self._world
        return path

    def _is_too_far_ahead(self) -> bool:
        if self._ahead_max is None:
            return False
        return self.number - self._acknowledged_by_all() >= self._ahead_max

    def _acknowledged_by_all(self) -> int:
        return min((_acknowledged(self._directory, it) for it in self._readers), default=0)


def read_shards(directory: _PathLike, *, after: int = -1) -> Iterator[Tuple[int, Path]]:
    """Every shard after number `after` in order, waiting for those that are not there yet, until
    the stage that writes them has succeeded."""
    directory = Path(directory)
    number = after + 1
    while True:
        # Looked for first: what was published before the end is there afterwards.
        ended = (directory / _END).exists()
        path = _shard(directory, number)
        if path.exists():
            yield number, path
            number += 1
        elif ended:
            # A writer that wrote less than others left gaps.
            for later in sorted(it for it in _numbers(directory) if it > number):
                yield later, _shard(directory, later)
            return
        else:
            time.sleep(_LOOK_EVERY)


def acknowledge(
    directory: _PathLike,
    number: int,
    *,
    reader: str = "default",
    rank: Optional[int] = None,
    world: Optional[int] = None,
) -> None:
    """This reader needs no shard up to and with `number` again, whatever happens to it: to be said
    after what was made of them is in a checkpoint. One that begins again from an older checkpoint
    takes nothing back. Every rank of a reader says it for itself; where one speaks for all of them,
    it says `rank=0, world=1`."""
    directory = Path(directory)
    own, world = _place(rank, world)
    path = _acknowledgement(directory, reader, own, world)
    # Two processes of one rank must not overwrite each other's.
    with open(directory / f".lock-{reader}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if number >= _count(path):
            _replace(path, str(number).encode())


def _place(rank: Optional[int], world: Optional[int]) -> Tuple[int, int]:
    own = int(os.environ.get("RANK", "0")) if rank is None else rank
    world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
    if not 0 <= own < world:
        raise ValueError(f"rank {own} is not one of {world}")
    return own, world


def _shard(directory: Path, number: int) -> Path:
    return directory / f"{_PREFIX}{number:08}{_SUFFIX}"


def _numbers(directory: Path) -> Iterator[int]:
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        digits = path.name[len(_PREFIX) : -len(_SUFFIX)]
        if digits.isdigit():
            yield int(digits)


def _acknowledgement(directory: Path, reader: str, rank: int, world: int) -> Path:
    return directory / f".read-{reader}.{rank}-of-{world}"


def _acknowledged(directory: Path, reader: str) -> int:
    """How many shards this reader is done with: all of its ranks are. A reader may have begun again
    with another number of ranks; what all of the former ones were done with remains done."""
    prefix = f".read-{reader}."
    names = (path.name[len(prefix) :] for path in directory.glob(f"{prefix}*-of-*"))
    worlds = {int(name.rpartition("-")[2]) for name in names}
    done = (
        min(_count(_acknowledgement(directory, reader, rank, world)) for rank in range(world))
        for world in worlds
    )
    return max(done, default=0)


def _count(acknowledgement: Path) -> int:
    try:
        return int(acknowledgement.read_text()) + 1
    except FileNotFoundError:
        return 0


def _replace(path: Path, data: bytes) -> None:
    # Of several processes that write the same, each has a draft of its own.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    draft.write_bytes(data)
    os.replace(draft, path)
