"""What runs from its construction to its end, and leaves nothing where it cannot begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

from typing_extensions import Self

__all__ = ["Started"]


class Started(ABC):
    """All it needs is in ``directory``; what ``_start`` pushes on ``_stack`` is undone at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of it, and what they have mounted."""
        self._stack.close()

    @abstractmethod
    def _start(self) -> None: ...
