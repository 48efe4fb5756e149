"""What `fusestripe doctor` says of a machine and of routes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusestripe.config import Route, load
from fusestripe.doctor import Finding, disk, machine, stores
from fusestripe.doctor.disk import SLOW_DISK, WRITE_TRIES
from fusestripe.errors import BadAnswer, PermissionDenied
from fusestripe.origins.base import Entry
from fusestripe.units import MIB
from tests.support.memory_origin import MemoryOrigin
from tests.support.web_server import WebServer
from tests.unit.test_cli import run


def test_doctor_asks_every_route(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    config = tmp_path / "c.toml"
    config.write_text(
        f'[[route]]\npath = "/good"\nsource = "file://{source}"\n'
        f'[[route]]\npath = "/bad"\nsource = "file://{source}/nothing"\n'
    )
    result = run("doctor", "--config", str(config), "--cache-dir", str(tmp_path / "new" / "cache"), "--json")
    findings = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert findings["route /good"]["level"] == "ok"
    assert findings["route /bad"]["level"] == "fail"
    assert "does not exist" in findings["route /bad"]["text"]
    assert findings["cache disk"]["level"] != "fail"
    assert result.exit_code == 1
    assert not (tmp_path / "new").exists()


def test_doctor_looks_at_one_url(tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    (tmp_path / "file").write_bytes(b"x")
    result = run("doctor", f"file://{tmp_path}", *cache)
    assert f"file://{tmp_path} answers in " in result.stdout
    assert "and file can be read" in result.stdout
    assert run("doctor", f"file://{tmp_path}/none", *cache).exit_code == 1


def test_doctor_says_what_each_store_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "STORAGE_EMULATOR", "AZURE_")):
            monkeypatch.delenv(name)
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("NO_GCE_CHECK", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setenv(name, "true")
    sources = ("s3://bucket", "gs://bucket", "az://container", "http://127.0.0.1:1/models")
    config = tmp_path / "config.toml"
    routes = [f'[[route]]\npath = "/{at}"\nsource = "{url}"\n' for at, url in enumerate(sources)]
    config.write_text("\n".join(routes))
    result = run("doctor", "--config", str(config), "--cache-dir", str(tmp_path / "cache"), "--json")
    findings = {found["what"]: found for found in json.loads(result.stdout)}
    for at, mend in enumerate(
        ("AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT")
    ):
        assert findings[f"route /{at}"]["level"] == "fail"
        assert mend in findings[f"route /{at}"]["mend"]
    assert "connection refused" in findings["route /3"]["text"]


def test_doctor_has_a_line_for_each_thing(tmp_path: Path) -> None:
    result = run("doctor", "--cache-dir", str(tmp_path))
    words = [line.split()[0] for line in result.stdout.splitlines()]
    assert len(words) >= 10
    assert set(words) <= {"ok", "warning", "fail"}
    assert result.exit_code == ("fail" in words)


@pytest.mark.parametrize(
    ("release", "right", "says"),
    [
        ("6.9.0", True, "the kernel reads"),
        ("6.8.12-1", True, "not in Linux 6.8"),
        ("6.12", False, "CAP_SYS_ADMIN"),
        ("10.0", True, "the kernel reads"),
    ],
)
def test_passthrough_takes_a_kernel_and_a_right(release: str, right: bool, says: str) -> None:
    assert says in machine.passthrough(release, right, load(None, {})).text


@pytest.mark.parametrize(
    ("release", "level"), [("6.5.0", "ok"), ("6.4.12", "warning"), ("5.15.0-91", "warning")]
)
def test_the_channel_takes_a_kernel(release: str, level: str) -> None:
    assert machine.channel(release, load(None, {})).level == level


@pytest.mark.parametrize(
    ("release", "level", "says"),
    [
        ("6.9.0", "ok", "outlives"),
        ("6.5.0", "ok", "outlives"),  # what the kernel does not send again the next daemon has from the last
        ("6.4.0", "warning", "takes the channel"),
    ],
)
def test_that_a_mount_outlives_its_daemon_takes_a_kernel(release: str, level: str, says: str) -> None:
    found = machine.keeper(release, load(None, {}))
    assert (found.level, says in found.text) == (level, True)
    assert bool(found.mend) == (level != "ok")


def test_what_is_switched_off_is_said() -> None:
    settings = load(None, {"channel": "no", "passthrough": "no"})
    assert machine.keeper("6.18.0", settings).mend == "-o channel=yes"
    assert machine.keeper("6.18.0", load(None, {"keeper": "no"})).mend == "-o keeper=yes"
    assert "switched off" in machine.channel("6.18.0", settings).text
    assert "switched off" in machine.passthrough("6.18.0", True, settings).text


@pytest.mark.parametrize(
    ("rates", "level", "tried"),
    [
        ([400], "ok", 1),
        ([299, 290, 301], "ok", 3),
        ([299, 290, 280], "warning", 3),
        ([20, 299, 250], "warning", 3),
    ],
)
def test_a_disk_is_as_fast_as_its_best_try(
    monkeypatch: pytest.MonkeyPatch, rates: list[int], level: str, tried: int
) -> None:
    left = iter(rates)
    asked = []

    def write_rate(directory: str, size: int) -> tuple[bool, float]:
        asked.append(directory)
        return True, next(left) * MIB

    monkeypatch.setattr(disk, "write_rate", write_rate)
    direct, rate = disk.best_write_rate("/nvme", MIB)
    found = disk.judge_disk(direct=direct, rate=rate)
    assert (found.level, len(asked)) == (level, tried)
    assert f"{max(rates)} MiB/s" in found.text  # the figure
    assert "300 MiB/s" in found.text  # and what it is held against
    assert len(rates) <= WRITE_TRIES
    assert SLOW_DISK == 300 * MIB


def test_a_disk_without_o_direct_is_told(tmp_path: Path) -> None:
    assert "without O_DIRECT" in disk.judge_disk(direct=False, rate=1e9).text
    assert disk.best_write_rate(str(tmp_path), MIB)[1] > 0


def looked(origin: MemoryOrigin) -> Finding:
    return stores.try_reading("route /", "it answers", origin)


def test_a_route_is_ok_once_a_byte_was_read() -> None:
    found = looked(MemoryOrigin({"a/empty": b"", "a/b/model.pt": b"12345", "z/other": b"1"}))
    assert (found.level, found.text) == ("ok", "it answers, and a/b/model.pt can be read")
    nothing = looked(MemoryOrigin({}))
    assert (nothing.level, nothing.text) == ("ok", "it answers; no file was found to try")


def test_a_route_whose_files_may_not_be_read_is_not_ok() -> None:
    origin = MemoryOrigin({"model.pt": b"12345"})

    def refuse(path: str, offset: int, length: int) -> None:
        raise PermissionDenied(f"{path} may not be read")

    def fail(path: str, offset: int, length: int) -> None:
        raise BadAnswer(f"{path} is cut off")

    origin.gate = refuse
    with pytest.raises(PermissionDenied):
        looked(origin)
    origin.gate = fail
    found = looked(origin)
    assert (found.level, found.text) == ("warning", "it answers, but: model.pt is cut off")


def test_a_directory_that_only_leads_on_and_on_is_left() -> None:
    class Endless(MemoryOrigin):
        def list_dir(self, path: str) -> Iterator[list[Entry]]:
            yield [Entry("deeper", is_dir=True)]

    assert looked(Endless()).text == "it answers; no file was found to try"


def test_a_web_server_that_lists_nothing_is_not_called_ok(web_server: WebServer) -> None:
    """Whether its files can be read, nobody knows."""
    web_server.put("of doctor/file", b"x")
    base = f"{web_server.endpoint}/{{}}/of%20doctor"
    unlisted = stores.origin(Route("/", base.format("unlisted")), 5)
    assert unlisted.level == "warning"
    assert "no file was found to try, so whether they can be read is not known" in unlisted.text
    assert unlisted.mend.startswith(f"fusestripe bench {base.format('unlisted')}/")
    listed = stores.origin(Route("/", base.format("html")), 5)
    assert (listed.level, listed.text.endswith(" s, and file can be read")) == ("ok", True)


def test_the_helper_of_mount_is_linked_from_where_it_was_installed(tmp_path: Path) -> None:
    place, prefix = tmp_path / "sbin", tmp_path / "prefix"
    link = f"ln -sf {prefix}/sbin/mount.fusestripe {place}/mount.fusestripe"
    helper = prefix / "sbin" / "mount.fusestripe"
    for directory in (place, helper.parent):
        directory.mkdir(parents=True)
    lacking = machine.mount_helper(str(place), str(prefix))
    assert lacking.level == "warning"
    assert lacking.mend.endswith(f"install --force-reinstall fusestripe && {link}")
    helper.touch(0o755)
    assert machine.mount_helper(str(place), str(prefix)).mend == f"as root: {link}"
    (place / helper.name).symlink_to(helper)
    assert machine.mount_helper(str(place), str(prefix)).level == "ok"
    helper.chmod(0o644)
    assert machine.mount_helper(str(place), str(prefix)).level == "warning"


def test_every_finding_that_is_not_well_has_a_mend(tmp_path: Path) -> None:
    result = run("doctor", f"file://{tmp_path}/none", "--cache-dir", str(tmp_path), "--json")
    ill = [finding for finding in json.loads(result.stdout) if finding["level"] != "ok"]
    assert "route /" in {finding["what"] for finding in ill}
    assert [finding for finding in ill if not finding["mend"]] == []
