"""What is given away: an sdist and a wheel, what they hold, and what the wheel brings to its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import fusestripe
from fusestripe.doctor.stores import EXTRAS
from tests.support.distribution import ROOT, Installed, build, install


class Built(NamedTuple):
    """``wheel`` is made of the ``sdist``, as a packager does; ``direct`` of the source tree, as pip does."""

    sdist: Path
    wheel: Path
    direct: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    sdist = build(ROOT, tmp_path_factory.mktemp("sdist"), "--sdist")
    unpacked = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xf", str(sdist), "-C", str(unpacked)], check=True)
    (source,) = unpacked.iterdir()
    wheel = build(source, tmp_path_factory.mktemp("wheel"), "--wheel")
    return Built(sdist, wheel, build(ROOT, tmp_path_factory.mktemp("direct"), "--wheel"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(built.wheel, tmp_path_factory.mktemp("installed"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(built: Built) -> Metadata:
    (text,) = (data for name, data in contents(built.wheel).items() if name.endswith("/METADATA"))
    return Metadata.from_email(text, validate=True)


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_sdist_makes_the_same_wheel(built: Built) -> None:
    assert contents(built.wheel) == contents(built.direct)


def test_the_wheel_holds_the_code_and_nothing_else(built: Built) -> None:
    held = contents(built.wheel)
    code = {f"fusestripe/{name}": data for name, data in files_below(ROOT / "fusestripe").items()}
    assert "fusestripe/py.typed" in code
    assert code.items() <= held.items()
    assert {name.partition("/")[0].partition("-")[0] for name in held} == {"fusestripe"}
    assert not [name for name in held if name.startswith("fusestripe/") and name not in code]


def test_the_sdist_can_be_tested_and_built_from(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
    for directory in ("fusestripe", "mount", "tests", "examples"):
        wanted |= {f"{directory}/{name}" for name in files_below(ROOT / directory)}
    assert wanted - held == set()


def test_the_metadata_is_valid(built: Built) -> None:
    told = metadata(built)
    assert (told.name, str(told.version)) == ("fusestripe", fusestripe.__version__)
    assert (told.license_expression, told.license_files) == ("Apache-2.0", ["LICENSE"])
    assert str(told.requires_python) == ">=3.10"
    assert told.description_content_type == "text/markdown"
    assert "Typing :: Typed" in (told.classifiers or [])
    assert any(name.endswith("/licenses/LICENSE") for name in contents(built.wheel))


def test_every_extra_that_a_mend_names_brings_what_lacks(built: Built) -> None:
    told = metadata(built)
    extras = set(told.provides_extra or [])
    code = b"".join(files_below(ROOT / "fusestripe").values()).decode()
    assert set(re.findall(r"pip install 'fusestripe\[(\w+)\]'", code)) <= extras
    assert set(EXTRAS) <= extras
    brings = {
        extra: {each.name for each in told.requires_dist or [] if _is_of(each, extra)} for extra in EXTRAS
    }
    assert brings == {
        "arrow": {"pyarrow"},
        "aws": {"botocore"},
        "azure": {"azure-identity"},
        "gcs": {"google-auth"},
        "hdfs": {"hdfs-native"},
        "peers": {"pyarrow", "python-hostlist"},
    }


def _is_of(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and not marker.evaluate() and marker.evaluate({"extra": extra})


@pytest.mark.parametrize(
    "name",
    [
        "lib/systemd/system/fusestripe@.service",
        "sbin/mount.fusestripe",
        "share/bash-completion/completions/fusestripe",
        "share/fish/vendor_completions.d/fusestripe.fish",
        "share/man/man1/fusestripe.1",
        "share/man/man8/mount.fusestripe.8",
        "share/zsh/site-functions/_fusestripe",
    ],
)
def test_other_programs_find_their_files_below_the_prefix(installed: Installed, name: str) -> None:
    assert (installed.prefix / name).read_bytes()


def test_what_installs_around_it_comes_along(installed: Installed) -> None:
    """With the right to be executed, where it has that; what has a place of its own is there alone."""
    ours, theirs = ROOT / "mount", installed.prefix / "share" / "fusestripe"
    brought = files_below(theirs)
    around = ("kubernetes/", "slurm/")
    assert brought == {name: data for name, data in files_below(ours).items() if name.startswith(around)}
    for name in brought:
        assert bool((ours / name).stat().st_mode & 0o100) == bool((theirs / name).stat().st_mode & 0o100)


def test_it_is_the_installed_one_that_runs(installed: Installed) -> None:
    where = installed.run(str(installed.python), "-c", "import fusestripe; print(fusestripe.__file__)").stdout
    assert where.startswith(f"{installed.prefix}/")
    for command in (["fusestripe"], [str(installed.python), "-m", "fusestripe"]):
        told = installed.run(*command, "--version").stdout
        assert told == f"fusestripe, version {fusestripe.__version__}\n"
    assert "fusestripe mount s3://" in installed.run("fusestripe", "--help").stdout


def test_doctor_runs_where_it_is_installed(installed: Installed, tmp_path: Path) -> None:
    """And knows from where the helper of mount(8) is to be linked, if it is not."""
    done = installed.run("fusestripe", "doctor", "--json", "--cache-dir", str(tmp_path), check=False)
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert findings["pyfuse3"]["level"] == "ok"
    helper = findings["mount.fusestripe"]
    link = f"as root: ln -sf {installed.prefix}/sbin/mount.fusestripe /sbin/mount.fusestripe"
    assert (helper["level"], helper["mend"]) in (("warning", link), ("ok", ""))


def test_the_helper_of_mount_finds_its_program(installed: Installed, tmp_path: Path) -> None:
    """Called as mount(8) does: by the link, and with hardly an environment."""
    link = tmp_path / "mount.fusestripe"
    link.symlink_to(installed.prefix / "sbin" / "mount.fusestripe")
    done = subprocess.run(
        [str(link), "nothing://bucket", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert "unknown scheme nothing://" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_man_finds_the_page_by_the_path(installed: Installed) -> None:
    page = installed.prefix / "share" / "man" / "man1" / "fusestripe.1"
    assert installed.run("man", "-w", "fusestripe").stdout.strip() == str(page)


PROGRAM = """
import fusestripe

with fusestripe.mount("s3://bucket/ckpt", "/mnt/ckpt", cache_dir="/nvme") as path:
    size: int = (path / "model.pt").stat().st_size
reports = fusestripe.prefetch("s3://bucket/ckpt", cache_dir="/nvme")
{line}
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("print(sum(report.fetched for report in reports))", ""),
        ('print("" + reports[0].fetched)', "Unsupported operand types"),
    ],
    ids=["right", "wrong"],
)
def test_a_program_that_uses_it_is_checked_by_its_types(
    installed: Installed, tmp_path: Path, line: str, said: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(line=line))
    checks = ("--strict", "--config-file=", f"--cache-dir={tmp_path}", "--python-executable")
    done = subprocess.run(
        ["mypy", *checks, str(installed.python), str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=installed.environment | {"PATH": os.environ["PATH"]},
    )
    assert (said in done.stdout) if said else (done.returncode == 0), done.stdout + done.stderr
    assert bool(said) == bool(done.returncode)
