"""That the content by which tests know a wrong byte does tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.blocks import BLOCK, check, content

SIZE = 5 * BLOCK + 100


@given(st.integers(0, 5), st.integers(1, SIZE))
def test_what_is_right_passes(first: int, length: int) -> None:
    check(content(3, 2, SIZE)[first * BLOCK :][:length], 3, first)


@given(st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_wrong_byte_shows(place: int, change: int) -> None:
    data = bytearray(content(3, 2, SIZE))
    data[place] ^= change
    with pytest.raises(RuntimeError):
        check(data, 3, 0)


def test_another_block_file_or_version_shows() -> None:
    data = content(3, 2, SIZE)
    for wrong in (
        data[BLOCK:],
        content(4, 2, SIZE),
        data[: 2 * BLOCK] + content(3, 1, SIZE)[2 * BLOCK :],
        data[: 2 * BLOCK] + bytes(BLOCK) + data[3 * BLOCK :],
    ):
        with pytest.raises(RuntimeError):
            check(wrong, 3, 0)
