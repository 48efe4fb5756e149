from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.namespace import inodes
from fusestripe.namespace.inodes import ROOT, InodeTable
from fusestripe.origins.base import Entry, Owner

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)


def test_a_replaced_file_is_another_inode_and_a_directory_stays() -> None:
    table = InodeTable()
    one = table.find("a", Entry("a", False, 3, tag="1"))
    table.remember(one)
    assert table.find("a", Entry("a", False, 3, tag="1")) is one
    assert table.find("a", Entry("a", False, 3, tag="2")).inode != one.inode
    directory = table.find("d", Entry("d", True))
    table.remember(directory)
    assert table.find("d", Entry("d", True, mtime_ns=5)) is directory


def test_asking_for_a_directorys_number_changes_nothing_of_it() -> None:
    table = InodeTable()
    entry = Entry("d", True, owner=Owner(0o700, 5, 5))
    node = table.find("x/d", entry)
    table.remember(node)
    assert table.directory("x/d") == node.inode
    assert node.entry is entry
    assert table.directory("") == ROOT


def test_numbers_are_the_same_after_a_restart() -> None:
    entry = Entry("a", False, 3, tag="1")
    assert InodeTable().find("x/a", entry).inode == InodeTable().find("x/a", entry).inode


def test_the_kernel_gives_back_what_it_was_given() -> None:
    table = InodeTable()
    node = table.find("a", Entry("a", False))
    for _ in range(3):
        table.remember(node)
    table.forget(node.inode, 2)
    assert table.get(node.inode) is node
    table.forget(node.inode, 1)
    with pytest.raises(KeyError):
        table.get(node.inode)
    table.forget(ROOT, 99)
    assert table.get(ROOT).path == ""


@given(st.lists(st.tuples(names, st.integers(0, 2)), unique=True, max_size=40))
def test_different_things_have_different_numbers_even_where_they_collide(
    things: list[tuple[str, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inodes, "_derive", lambda path, entry: 2 + len(path) % 3)
        table = InodeTable()
        given: dict[int, tuple[str, int]] = {}
        for name, tag in things:
            node = table.find(name, Entry(name, False, tag=str(tag)))
            table.remember(node)
            assert node.inode not in given
            given[node.inode] = (name, tag)
        for inode, (name, tag) in given.items():
            assert table.find(name, Entry(name, False, tag=str(tag))).inode == inode
