"""Bytes as Arrow Flight carries them: record batches of one column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["EMPTY", "SCHEMA", "batch_of", "bytes_of"]

SCHEMA = pa.schema([("bytes", pa.uint8())])
EMPTY = pa.RecordBatch.from_arrays([pa.array([], pa.uint8())], schema=SCHEMA)


def batch_of(data: memoryview) -> Any:
    """A record batch that looks at ``data``, which is not copied."""
    column = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def bytes_of(batch: Any) -> memoryview | None:
    """What ``batch`` carries; None where it is none of ours."""
    if batch is None or batch.schema != SCHEMA or batch.column(0).null_count:
        return None
    column = batch.column(0)
    if not len(column):
        return memoryview(b"")
    return memoryview(column.buffers()[1]).cast("B")[column.offset : column.offset + len(column)]
