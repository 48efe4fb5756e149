"""Pages of the manual as troff takes them, with the macros of man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import fusestripe

__all__ = ["escaped", "head", "literal", "paragraph", "references", "tagged"]


def head(name: str, section: int, volume: str) -> Iterator[str]:
    """The beginning of the page ``name``, which is shown as one of ``volume``."""
    yield '.\\" Made by `python -m fusestripe.manual mount/man` of what the code says of itself.'
    yield f'.TH {name.upper()} {section} "" "fusestripe {fusestripe.__version__}" "{volume}"'
    yield from (".nh", ".ad l")  # a name that is cut in two cannot be copied


def tagged(tag: str, meaning: str) -> Iterator[str]:
    """A name, and below it what it means."""
    yield ".TP"
    yield rf"\fB{escaped(tag)}\fR"
    yield from paragraph(meaning)


def paragraph(text: str) -> Iterator[str]:
    """Filled: a sentence a line, as troff wants it, so that the page tells where they end."""
    for sentence in re.split(r"(?<=[.;:]) (?=[A-Z])", " ".join(text.split())):
        yield escaped(sentence)


def literal(text: str) -> Iterator[str]:
    """A paragraph whose lines stay as they are."""
    yield ".PP"
    yield ".nf"
    yield from (escaped(line) for line in text.rstrip().split("\n"))
    yield ".fi"


def references(pages: Iterable[str]) -> str:
    """Pages like "umount(8)" on one line."""
    return ", ".join(re.sub(r"^(.*)\(", lambda match: rf"\fB{escaped(match[1])}\fR(", page) for page in pages)


def escaped(text: str) -> str:
    r"""``text`` as troff shows it: no "-" is a hyphen, and a dot at the beginning asks for nothing."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    text = text.replace("'", r"\(aq").replace("`", r"\(ga")
    return rf"\&{text}" if text.startswith(".") else text
