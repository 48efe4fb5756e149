from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.namespace.walks import common_parent, directories_of
from fusestripe.origins.base import Entry

names = st.sampled_from("abc")
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


def test_the_common_parent() -> None:
    assert common_parent(["a/b/c", "a/b/d", "a/b"]) == "a/b"
    assert common_parent(["a/b", "ab/c"]) == ""
    assert common_parent(["", "a"]) == ""


@given(st.sets(paths, max_size=30), st.integers(1, 5))
def test_every_file_is_found_by_walking_down(found: set[str], page: int) -> None:
    files = sorted(path for path in found if not any(other.startswith(path + "/") for other in found))
    entries = [(path, Entry(path.rpartition("/")[2], False)) for path in files]
    pages = [entries[start : start + page] for start in range(0, len(entries), page)]
    directories = directories_of(pages, limit=100)
    assert directories is not None

    def below(path: str) -> list[str]:
        seen = []
        for name, entry in directories[path].items():
            child = f"{path}/{name}" if path else name
            seen += below(child) if entry.is_dir else [child]
        return seen

    assert sorted(below("")) == files


def test_more_pages_than_allowed_are_no_answer() -> None:
    page = [("a", Entry("a", False))]
    assert directories_of([page] * 3, limit=3) is not None
    assert directories_of([page] * 4, limit=3) is None
