"""The pickle that torch.distributed.checkpoint keeps as `.metadata`, written without torch."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = ["HostileCall", "Named", "dumped", "metadata"]

MODULE = "torch.distributed.checkpoint"


class Named:
    """In the pickle it is what ``__module__`` and ``__qualname__`` of its class say, with this state."""

    def __init__(self, **state: object) -> None:
        self.__dict__.update(state)


class HostileCall:
    """Unpickled without care it calls ``name`` of ``module`` with ``arguments``."""

    def __init__(self, module: str, name: str, *arguments: object) -> None:
        self.called = type(name, (), {"__module__": module, "__qualname__": name})
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.called, self.arguments


def _named(module: str, name: str) -> type[Named]:
    return type(name, (Named,), {"__module__": f"{MODULE}.{module}"})


Metadata = _named("metadata", "Metadata")
MetadataIndex = _named("metadata", "MetadataIndex")
StorageInfo = _named("filesystem", "_StorageInfo")
BytesStorage = _named("metadata", "BytesStorageMetadata")
TensorStorage = _named("metadata", "TensorStorageMetadata")


_PICKLER: Any = pickle._Pickler  # the one in Python, which can be changed


class _Writer(_PICKLER):  # type: ignore[misc]
    """Writes classes by their names, whether those can be imported or not."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        self.save(obj.__module__)
        self.save(name or obj.__qualname__)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    dispatch: ClassVar = {**_PICKLER.dispatch, type: save_global}


def dumped(value: object) -> bytes:
    """``value`` as a pickle of protocol 4."""
    into = io.BytesIO()
    _Writer(into, 4).dump(value)
    return into.getvalue()


def metadata(files: Mapping[str, Sequence[int]], **more: object) -> bytes:
    """The metadata of a checkpoint that has items of these lengths, one after the other, in each file."""
    state: dict[object, object] = {}
    storage: dict[object, object] = {}
    for path, lengths in files.items():
        offset = 0
        for number, length in enumerate(lengths):
            fqn = f"{path}.{number}"
            state[fqn] = BytesStorage() if number == 0 else TensorStorage(size=(number, 2), chunks=[])
            storage[MetadataIndex(fqn=fqn, index=number, offset=None)] = StorageInfo(
                relative_path=path, offset=offset, length=length
            )
            offset += length
    whole = {"state_dict_metadata": state, "planner_data": {}, "storage_data": storage, "version": "1.0.0"}
    return dumped(Metadata(**whole | more))
