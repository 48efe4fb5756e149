"""A place in a listing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.namespace.cursor import Cursor
from fusestripe.namespace.tree import Listing
from fusestripe.origins.base import Entry

ENTRIES = {name: Entry(name, is_dir=False) for name in "abcdefgh"}


@given(st.lists(st.integers(0, len(ENTRIES) + 1)))
def test_it_shows_from_any_place_what_a_list_would(places: list[int]) -> None:
    cursor = Cursor("", Listing(ENTRIES, True, 0.0, 60.0))
    expected = list(ENTRIES.values())
    for place in places:
        cursor.seek(place)
        for number in range(place, min(place + 3, len(expected) + 1)):
            assert cursor.number == number
            assert cursor.entry == (expected[number] if number < len(expected) else None)
            cursor.step()
