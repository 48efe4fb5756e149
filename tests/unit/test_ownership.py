"""Whose what is shown is, and its modes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.namespace.ownership import Ownership, Shown
from fusestripe.origins.base import Entry, Owner

ids = st.integers(0, 2**32 - 2)
masks = st.none() | st.integers(0, 0o777)
owners = st.none() | st.builds(Owner, st.integers(0, 0o177777), st.none() | ids, st.none() | ids)
entries = st.builds(lambda is_dir, owner: Entry("name", is_dir, owner=owner), st.booleans(), owners)
ownerships = st.builds(Ownership, ids, ids, st.none() | ids, st.none() | ids, masks)


def test_what_an_origin_knows_nothing_of_is_of_who_mounted() -> None:
    mine = Ownership(7, 8)
    assert mine.of(Entry("d", is_dir=True)) == Shown(0o755, 7, 8)
    assert mine.of(Entry("f", is_dir=False)) == Shown(0o644, 7, 8)
    assert mine.of(Entry("f", is_dir=False, owner=Owner(0o100640, None, 3))) == Shown(0o640, 7, 3)


def test_a_umask_as_programs_have_it() -> None:
    for umask, file_mode, dir_mode in ((0, 0o666, 0o777), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)):
        mine = Ownership(7, 8, umask=umask)
        assert mine.of(Entry("f", is_dir=False)).mode == file_mode
        assert mine.of(Entry("d", is_dir=True)).mode == dir_mode
        assert mine.of(Entry("x", is_dir=False, owner=Owner(0o100755, 1, 1))).mode == 0o755 & ~umask


@given(ownerships, entries)
def test_who_is_asked_for_owns_all_and_a_umask_only_takes_away(mine: Ownership, entry: Entry) -> None:
    shown = mine.of(entry)
    known = entry.owner
    assert shown.uid == next(
        uid for uid in (mine.all_uid, known.uid if known else None, mine.uid) if uid is not None
    )
    assert shown.gid == next(
        gid for gid in (mine.all_gid, known.gid if known else None, mine.gid) if gid is not None
    )
    assert shown.mode & (mine.umask or 0) == 0
    if known is not None:
        assert shown.mode & ~known.mode == 0
    assert 0 <= shown.mode <= 0o7777
