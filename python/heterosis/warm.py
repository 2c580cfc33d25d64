"""A start before the devices are free: `warm: true` in the job file.

    import torch

    import heterosis

    data = prepare()
    heterosis.wait_for_devices()
    model = load().to("cuda")

The program is started while its devices still work for another job. It does what needs no device,
then waits until they are its own. Only then does it know which they are.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Dict, Optional

__all__ = ["wait_for_devices"]

#: Names the file that says which devices they are; nothing lies there before they are free.
_VARIABLE = "HET_WARM"

#: Seconds between two looks for it.
_LOOK_EVERY = 0.01


def wait_for_devices() -> None:
    """Waits until the devices of this process are free, and puts what is known since then into the
    environment: visible devices, and what they are.

    To be called once everything is done that needs no device, before the first use of one or
    question for one (`torch.cuda.is_available()`), and before anything that reads such variables:
    `job()`, `Batches`, Hugging Face's `TrainingArguments`. Without `warm: true`, and outside
    Heterosis, it returns at once.

    Raises RuntimeError where PyTorch has initialised CUDA already, which keeps the devices that it
    saw then.
    """
    file = os.environ.get(_VARIABLE)
    if not file:
        return
    if _cuda_is_initialised():
        raise RuntimeError(
            "CUDA was initialised before the devices of this process were known: call"
            " heterosis.wait_for_devices() before the first use of CUDA, or remove `warm: true`"
            " from the job file"
        )
    variables = _parsed(_awaited(Path(file)))
    # Whatever this process starts has nothing to wait for.
    variables[_VARIABLE] = None
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cuda_is_initialised() -> bool:
    # Who has not imported PyTorch does not pay for it here.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized()


def _awaited(file: Path) -> str:
    """The content of the file once it is there: it appears as a whole."""
    while True:
        try:
            return os.fsdecode(file.read_bytes())
        except FileNotFoundError:
            time.sleep(_LOOK_EVERY)


def _parsed(text: str) -> Dict[str, Optional[str]]:
    """Values by name, None for what is to be removed, of lines such as `export NAME='value'` and
    `unset NAME`."""
    variables: Dict[str, Optional[str]] = {}
    words = iter(shlex.split(text))
    for verb in words:
        name, is_set, value = next(words, "").partition("=")
        if not name or (verb, bool(is_set)) not in (("export", True), ("unset", False)):
            raise ValueError(f"{_VARIABLE}: neither export NAME='value' nor unset NAME: {verb} {name}")
        variables[name] = value if is_set else None
    return variables
