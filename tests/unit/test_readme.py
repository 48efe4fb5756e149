"""The README says what is so: every test it names exists, and its settings are the settings."""

from __future__ import annotations

import re
from pathlib import Path

from fusestripe.config import SETTINGS
from fusestripe.manual.program import default_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def settings_table() -> str:
    """As the README must have it."""
    lines = ["| TOML | meaning | default | flag | environment | `-o` |", "|---|---|---|---|---|---|"]
    for setting in SETTINGS:
        cells = [
            f"`[{setting.section}] {setting.key}`",
            setting.meaning,
            default_of(setting),
            f"`{setting.flag}`" if setting.flag else "",
            f"`{setting.environment}`" if setting.environment else "",
            f"`{setting.option}`" if setting.option else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_settings_are_the_settings() -> None:
    assert settings_table() in README


def test_every_test_it_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", README)
    assert len(named) >= 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def {name}\(", (ROOT / path).read_text() if (ROOT / path).exists() else "")
    ]
    assert missing == []


def test_every_sentence_of_the_semantics_names_its_test() -> None:
    section = README.partition("## Semantics")[2].partition("\n## ")[0]
    sentences = re.findall(r"^- (.+(?:\n  .+)*)", section, re.MULTILINE)
    assert len(sentences) >= 15
    assert [sentence for sentence in sentences if "`tests/" not in sentence] == []


def test_every_file_it_points_to_exists() -> None:
    links = re.findall(r"\]\(((?!http|#)[^)]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
