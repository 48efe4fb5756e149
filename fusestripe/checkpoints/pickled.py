"""Reads the pickle that torch.distributed.checkpoint keeps as `.metadata`, without torch and without trust.

No name in the pickle leads to what it names: each is a stand-in that keeps a few words and does nothing, and
names that no such file has are refused. What remains is that a pickle may be made to eat memory and time
(it names an entry of its memo that is billions away, or the hash of a tuple of tuples of tuples); so this
module runs as a process of its own, whose limits the kernel keeps. It imports the standard library alone.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import sys
from typing import Any

__all__ = ["Refused", "stored_lengths"]

# Packages whose names such a pickle has; Megatron has a class of its own for the metadata.
PACKAGES = frozenset(("torch", "megatron", "pathlib", "upath"))
NAMES = frozenset((("collections", "OrderedDict"), ("builtins", "set"), ("builtins", "frozenset")))
CPU_SECONDS = 120
MEMORY = 1 << 30
MEMORY_A_BYTE = 40
"""Bytes of memory that a byte of an honest pickle may need: 27 measured."""
FORBIDDEN = ("open", "import", "exec", "compile", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")


class Refused(Exception):
    """It is no such pickle, or no honest one; the message goes after the file's name."""


def stored_lengths(data: bytes) -> dict[str, int]:
    """How long each file is at least that the pickle names, by its path beside it. Raises Refused."""
    try:
        found = _Unpickler(data).load()
    except Refused:
        raise
    except Exception as error:  # a pickle can be broken in every way there is
        raise Refused(f"is no metadata of torch's ({type(error).__name__})") from None
    storage = _kept(found).get("storage_data")
    if not isinstance(storage, dict):
        raise Refused("is no metadata of torch's (it names no files)")
    lengths: dict[str, int] = {}
    for place in storage.values():
        path, offset, length = (_kept(place).get(key) for key in ("relative_path", "offset", "length"))
        if type(path) is not str or type(offset) is not int or type(length) is not int:
            raise Refused("is no metadata of torch's (an entry has no place)")
        if offset < 0 or length < 0:
            raise Refused("is no metadata of torch's (an entry has an impossible place)")
        lengths[path] = max(lengths.get(path, 0), offset + length)
    return lengths


def _kept(value: object) -> dict[Any, Any]:
    kept = getattr(value, "kept", None)
    return kept if type(kept) is dict else {}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._stand_in = _stand_in()

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        if package not in PACKAGES and (module, name) not in NAMES:
            raise Refused(
                f"is refused: it names {f'{module}.{name}'[:100]!r}, which torch's metadata does not"
            )
        return self._stand_in

    def persistent_load(self, pid: object) -> Any:
        raise Refused("is refused: it refers to something outside of itself")


def _stand_in() -> type:
    """A class for every name of one pickle, made anew for each: a pickle can change what it is given."""

    class StandIn:
        __slots__ = ("kept",)
        kept: object

        def __new__(cls, *_: object, **__: object) -> StandIn:
            self = object.__new__(cls)
            self.kept = None
            return self

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __setstate__(self, state: object) -> None:
            if type(state) is dict and ("relative_path" in state or "storage_data" in state):
                self.kept = state

        def __setitem__(self, key: object, value: object) -> None:
            pass

        def append(self, value: object) -> None:
            pass

        def extend(self, values: object) -> None:
            pass

        def add(self, value: object) -> None:
            pass

    return StandIn


def _confine(size: int) -> None:
    """Have the kernel and Python itself stop what should never be tried."""
    memory = MEMORY + MEMORY_A_BYTE * size
    for limit, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))

    def refuse(event: str, _: tuple[object, ...]) -> None:
        if event.startswith(FORBIDDEN):
            raise Refused("is refused: it wanted to do something")

    sys.addaudithook(refuse)


def main() -> None:
    """Read the pickle from stdin; print {"files": {path: length}} or {"error": why not}."""
    data = sys.stdin.buffer.read()
    _confine(len(data))
    answer: dict[str, object]
    try:
        answer = {"files": stored_lengths(data)}
    except Refused as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
