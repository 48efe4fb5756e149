"""Where the log goes: lines for people, entries with fields for the journal."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fusestripe.stderr import goes_to_journal, priority_of, with_priority

SCRIPT = """
import logging, sys
from fusestripe.telemetry.logs import set_up_logs
set_up_logs("/mnt/ckpt", sys.argv[2], journal=sys.argv[1])
log = logging.getLogger("fusestripe.cache.store")
{}
"""


class Journal:
    """Takes entries as systemd-journald does, at a socket of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(10)

    def entry(self) -> dict[str, str]:
        """The next one: KEY=value lines, or KEY, the length as 64 bits and the bytes."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 20, 1)
        for descriptor in descriptors:  # a memory file, where it is too long for a datagram
            with open(descriptor, "rb") as file:
                data = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
        fields = {}
        while data:
            line, _, data = data.partition(b"\n")
            key, equals, value = line.partition(b"=")
            if not equals:
                length = int.from_bytes(data[:8], "little")
                value, data = data[8 : 8 + length], data[9 + length :]
            fields[key.decode()] = value.decode()
        return fields

    def close(self) -> None:
        """Nobody takes entries any more."""
        self._socket.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    taker = Journal(tmp_path / "journal")
    yield taker
    taker.close()


def run(
    statement: str,
    journal: Path,
    errors: Path,
    *,
    level: str = "info",
    environ: Mapping[str, str] | None = None,
) -> str:
    """What a process that logs writes to stderr, which is the file ``errors``."""
    with errors.open("wb") as file:
        stat = os.fstat(file.fileno())
        stream = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"} if environ is None else environ
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(statement), str(journal), level],
            stderr=file,
            check=True,
            timeout=30,
            env={**os.environ, **stream},
        )
    return errors.read_text()


def test_the_journal_gets_entries_with_fields(journal: Journal, tmp_path: Path) -> None:
    assert run("log.warning('the %s is full', 'disk')", journal.path, tmp_path / "errors") == ""
    entry = journal.entry()
    assert entry.pop("CODE_FILE") == "<string>"
    assert int(entry.pop("CODE_LINE")) > 0
    assert entry == {
        "MESSAGE": "the disk is full",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "fusestripe",
        "FUSESTRIPE_MOUNTPOINT": "/mnt/ckpt",
        "LOGGER": "fusestripe.cache.store",
        "CODE_FUNC": "<module>",
    }


def test_levels_hold_for_the_journal_too(journal: Journal, tmp_path: Path) -> None:
    run("log.debug('no'); log.info('yes'); log.error('too')", journal.path, tmp_path / "errors")
    assert [(entry["MESSAGE"], entry["PRIORITY"]) for entry in (journal.entry(), journal.entry())] == [
        ("yes", "6"),
        ("too", "3"),
    ]
    run("log.debug('yes')", journal.path, tmp_path / "errors", level="debug")
    assert journal.entry()["PRIORITY"] == "7"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("log.info('two\\nPRIORITY=0\\nlines')", "two\nPRIORITY=0\nlines"),
        ("log.info('ä' * 300_000)", "ä" * 300_000),
        ("log.info('name \\udcff')", "name \\udcff"),
    ],
    ids=["lines", "long", "not UTF-8"],
)
def test_any_text_is_one_entry(journal: Journal, tmp_path: Path, statement: str, message: str) -> None:
    assert run(statement, journal.path, tmp_path / "errors") == ""
    entry = journal.entry()
    assert (entry["MESSAGE"], entry["PRIORITY"]) == (message, "6")


def test_a_traceback_is_in_the_entry(journal: Journal, tmp_path: Path) -> None:
    run("try: 1 / 0\nexcept ZeroDivisionError: log.exception('odd')", journal.path, tmp_path / "errors")
    message = journal.entry()["MESSAGE"]
    assert message.startswith("odd\nTraceback ")
    assert "ZeroDivisionError" in message


def test_where_no_journal_listens_lines_go_to_stderr_with_their_priority(tmp_path: Path) -> None:
    said = run("log.error('one\\ntwo')", tmp_path / "nobody", tmp_path / "errors")
    assert said == "<3>fusestripe.cache.store: one\n<3>two\n"


@pytest.mark.parametrize("environ", [{"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": "1:2"}], ids=str)
def test_a_file_gets_lines_with_the_time(journal: Journal, tmp_path: Path, environ: dict[str, str]) -> None:
    """Also below a service, whose children inherit the variable."""
    said = run("log.warning('hm')", journal.path, tmp_path / "errors", environ=environ)
    assert said.endswith(" WARNING fusestripe.cache.store: hm\n")
    assert said[:2] == "20"


def test_the_stream_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        stat = os.fstat(file.fileno())
        right = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        assert goes_to_journal(right, file.fileno())
        assert not goes_to_journal({"JOURNAL_STREAM": f"{stat.st_dev}:1"}, file.fileno())
        assert not goes_to_journal({}, file.fileno())
        descriptor = file.fileno()
    assert not goes_to_journal(right, descriptor)


def test_every_level_has_its_priority() -> None:
    assert [priority_of(level) for level in (60, 50, 40, 35, 30, 20, 10, 0)] == [2, 2, 3, 4, 4, 6, 7, 7]
    assert with_priority("one\ntwo", logging.WARNING) == "<4>one\n<4>two"


def test_a_refusal_is_an_error_to_the_journal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fusestripe", "mount", "no-such.toml"]
    for is_journal, prefix in ((True, "<3>"), (False, "")):
        with (tmp_path / "errors").open("wb") as file:
            stat = os.fstat(file.fileno())
            stream = f"{stat.st_dev}:{stat.st_ino}" if is_journal else "1:2"
            done = subprocess.run(
                command, stderr=file, check=False, timeout=30, env={**os.environ, "JOURNAL_STREAM": stream}
            )
        assert done.returncode == 1
        said = (tmp_path / "errors").read_text()
        assert said.startswith(f"{prefix}fusestripe: no-such.toml: no such file or directory: ")
