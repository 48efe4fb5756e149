"""What bars of bytes have in common."""

from __future__ import annotations

from rich.progress import BarColumn, DownloadColumn, ProgressColumn, TextColumn
from rich.table import Column

__all__ = ["byte_columns"]


def byte_columns() -> tuple[ProgressColumn, ...]:
    """A name, a bar, and so many bytes of so many: one row, however narrow the terminal is."""
    return (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
    )
