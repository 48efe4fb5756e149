"""A place in a listing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.namespace.cursor import Cursor
from fusestripe.namespace.tree import Listing
from fusestripe.origins.base import Entry

ENTRIES = {name: Entry(name, is_dir=False) for name in "abcdefgh"}
NAMES = st.text("abc", min_size=1, max_size=3)


def listing(names: set[str]) -> Listing:
    return Listing({name: Entry(name, is_dir=False) for name in sorted(names)}, True, 0.0, 60.0)


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


@given(st.sets(NAMES), st.sets(NAMES), st.integers(0, 20), st.data())
def test_in_another_listing_it_goes_on_behind_the_name_it_had_come_to(
    before: set[str], after: set[str], place: int, data: st.DataObject
) -> None:
    """Whatever came and went meanwhile: what is in both listings is seen once."""
    first = Cursor("", listing(before))
    while first.number < place and first.entry is not None:
        first.step()
    seen = sorted(before)[: first.number]
    assert first.last == (seen[-1] if seen else "")
    second = Cursor("", listing(after), first.number, first.last)
    second.seek(first.number)
    assert second.number == first.number
    rest = []
    while second.entry is not None:
        rest.append(second.entry.name)
        assert second.last == ([*seen, *rest[:-1]] or [""])[-1]
        second.step()
    assert rest == [name for name in sorted(after) if not seen or name > seen[-1]]
    assert second.number == first.number + len(rest)
    if data.draw(st.booleans()):
        second.seek(0)
        assert (second.entry, second.last) == (listing(after).entries[min(after)] if after else None, "")
    elif rest:
        back = data.draw(st.integers(0, len(rest) - 1))
        second.seek(first.number + back)
        assert second.entry is not None
        assert second.entry.name == rest[back]
