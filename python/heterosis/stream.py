"""A stream of shards between two stages of a job: `follows: [a]` in the job file.

    # stage `a`                                 # the stage that follows it
    with ShardWriter(job.output) as shards:     for number, path in read_shards("{stage.a.output}"):
        for batch in batches:                       train(path.read_bytes())
            shards.write(tokenised(batch))          acknowledge(path.parent, number, reader="train")

Shards are numbered files that are renamed into place, so a reader never sees half of one. Both sides
may be stopped and started again: a writer goes on after the last shard that lies there, a reader
names the shard that it goes on after. A writer that is told how far it may be ahead waits for its
readers to acknowledge. Programs that know nothing of this follow the same rules by themselves: a
shard is any file in the directory whose name does not begin with `.` or `_`, and `_SUCCESS` is there
once no further one will come.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Iterator, Optional, Sequence, Tuple, Union

__all__ = ["ShardWriter", "acknowledge", "read_shards"]

_END = "_SUCCESS"
_PREFIX, _SUFFIX = "shard-", ".bin"
#: Seconds between two looks for what another process does.
_LOOK_EVERY = 0.05

_PathLike = Union[str, "os.PathLike[str]"]


class ShardWriter:
    """Writes numbered shards, from the one after the last that lies there.

    Attributes:
        number: of the next shard: a restarted writer skips that many of its batches.
    """

    def __init__(
        self,
        directory: _PathLike,
        *,
        ahead_max: Optional[int] = None,
        readers: Sequence[str] = ("default",),
    ) -> None:
        """`ahead_max` shards at the most may wait to be acknowledged by each of `readers`."""
        if ahead_max is not None and ahead_max < 1:
            raise ValueError(f"ahead_max is {ahead_max}: at least one shard has to fit")
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._ahead_max = ahead_max
        self._readers = tuple(readers)
        self.number = max(_numbers(self._directory), default=-1) + 1

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
        self.number += 1
        return path

    def _is_too_far_ahead(self) -> bool:
        if self._ahead_max is None:
            return False
        done = min(_acknowledged(self._directory, reader) for reader in self._readers)
        return self.number - done > self._ahead_max


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
            return
        else:
            time.sleep(_LOOK_EVERY)


def acknowledge(directory: _PathLike, number: int, *, reader: str = "default") -> None:
    """This reader needs no shard up to and with `number` again, whatever happens to it: to be said
    after what was made of them is in a checkpoint."""
    _replace(_acknowledgement(Path(directory), reader), str(number).encode())


def _shard(directory: Path, number: int) -> Path:
    return directory / f"{_PREFIX}{number:08}{_SUFFIX}"


def _numbers(directory: Path) -> Iterator[int]:
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        digits = path.name[len(_PREFIX) : -len(_SUFFIX)]
        if digits.isdigit():
            yield int(digits)


def _acknowledgement(directory: Path, reader: str) -> Path:
    return directory / f".read-{reader}"


def _acknowledged(directory: Path, reader: str) -> int:
    """How many shards this reader is done with."""
    try:
        return int(_acknowledgement(directory, reader).read_text()) + 1
    except FileNotFoundError:
        return 0


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(data)
    os.replace(draft, path)
