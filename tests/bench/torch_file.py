"""A checkpoint as torch writes it, where torch is installed."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

from fusestripe.units import MIB

__all__ = ["is_installed", "load", "save"]

_TENSOR = 64 * MIB


def is_installed() -> bool:
    """Whether there is a torch."""
    return importlib.util.find_spec("torch") is not None


def save(path: Path, size: int) -> None:
    """A file of tensors that hold ``size`` random bytes."""
    import torch

    lengths = [min(_TENSOR, size - start) for start in range(0, size, _TENSOR)]
    state = {
        f"layer-{number}": torch.frombuffer(bytearray(os.urandom(length)), dtype=torch.uint8)
        for number, length in enumerate(lengths)
    }
    torch.save(state, path)


def load(path: Path, size: int) -> float:
    """Seconds that `torch.load` takes for the file of ``size`` bytes."""
    import torch

    _claim(size)
    start = time.perf_counter()
    state = torch.load(path, map_location="cpu", weights_only=True)
    seconds = time.perf_counter() - start
    got = sum(tensor.nbytes for tensor in state.values())
    if not size - MIB < got <= size:
        raise RuntimeError(f"{path.name}: {got} bytes in tensors, of {size} in the file")
    return seconds


def _claim(size: int) -> None:
    """Have free memory for ``size`` bytes that has been used already.

    A virtual machine hands free memory back and gets it anew page by page, which takes longer than reading:
    whoever loads first would pay for both sides.
    """
    memory = bytearray(b"\x01") * size
    del memory
