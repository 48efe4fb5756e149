"""A module imports only from rows above its own: the house stays as the design draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fusestripe"

# From the ground up; a row may import itself and what stands before it.
ROWS = (
    "errors",
    "stderr",
    "units",
    "cgroups",
    "packages",
    "slurm",
    "checkpoints",
    "config",
    "origins",
    "stripes",
    "cache",
    "peers",
    "namespace",
    "openfiles",
    "readback",
    "smallreads",
    "windows",
    "reader",
    "prefetcher",
    "sharing",
    "peering",
    "unpickling",
    "selection",
    "planning",
    "telling",
    "keeper",
    "kernel",
    "handover",
    "engine",
    "telemetry",
    "places",
    "leftovers",
    "launch",
    "daemon",
    "named",
    "offline",
    "api",
    "job",
    "mount_helper",
    "doctor",
    "commands",
    "cli",
    "manual",
    "__init__",
    "__main__",
)
ALONE = {"pyfuse3": {"kernel/operations.py", "kernel/session.py"}}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def row_of(path: Path) -> int:
    relative = path.relative_to(PACKAGE)
    return ROWS.index(relative.parts[0] if len(relative.parts) > 1 else relative.stem)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_above(path: Path) -> None:
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        row = rest.partition(".")[0]
        if package == "fusestripe" and row in ROWS:
            assert ROWS.index(row) <= row_of(path), f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_short_and_pyfuse3_has_its_place(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 420
    for package, places in ALONE.items():
        if package in {name.partition(".")[0] for name in imports_of(path)}:
            assert str(path.relative_to(PACKAGE)) in places
