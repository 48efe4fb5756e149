"""Filesystems of pyarrow as origins: a local one, and HDFS through Hadoop's JVM client."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from fusestripe.errors import ConfigError, NotFound
from fusestripe.origins.arrow import ArrowOrigin
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.jvm import prepare_jvm
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import OriginConformance, Store
from tests.origins.test_local import Directory


class TestLocalFileSystem(OriginConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Directory(tmp_path)

    @pytest.fixture
    def origin(self, store: Store, tmp_path: Path) -> Origin:
        return ArrowOrigin(LocalFileSystem(), "arrow+local://", str(tmp_path), 30)


class TestSubTree(OriginConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Directory(tmp_path)

    @pytest.fixture
    def origin(self, store: Store, tmp_path: Path) -> Origin:
        return ArrowOrigin(SubTreeFileSystem(str(tmp_path), LocalFileSystem()), "arrow+tree://", "", 30)


def complete(tmp_path: Path) -> dict[str, str]:
    """An environment in which all that the JVM client needs can be found."""
    libraries = tmp_path / "native"
    java = tmp_path / "java" / "lib" / "server"
    for directory in (libraries, java):
        directory.mkdir(parents=True)
    (libraries / "libhdfs.so").touch()
    (java / "libjvm.so").touch()
    return {"ARROW_LIBHDFS_DIR": str(libraries), "JAVA_HOME": str(tmp_path / "java"), "CLASSPATH": "x.jar"}


def test_the_jvm_leaves_signals_to_the_daemon(tmp_path: Path) -> None:
    environ = complete(tmp_path)
    prepare_jvm(environ)
    assert environ["LIBHDFS_OPTS"] == "-Xrs"
    environ["LIBHDFS_OPTS"] = "-Xmx1g"
    prepare_jvm(environ)
    prepare_jvm(environ)
    assert environ["LIBHDFS_OPTS"] == "-Xmx1g -Xrs"


@pytest.mark.parametrize(
    ("missing", "match", "mend"),
    [
        ("ARROW_LIBHDFS_DIR", "libhdfs.so", "HADOOP_HOME"),
        ("JAVA_HOME", "JVM", "JAVA_HOME"),
        ("CLASSPATH", "CLASSPATH", "hadoop classpath --glob"),
    ],
)
def test_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, match: str, mend: str
) -> None:
    environ = complete(tmp_path)
    del environ[missing]
    monkeypatch.setattr("fusestripe.origins.jvm._JVM_PARENTS", ())
    with pytest.raises(ConfigError, match=match) as caught:
        prepare_jvm(environ)
    assert mend in caught.value.mend
    assert "\n" not in str(caught.value)


def test_the_client_of_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARROW_LIBHDFS_DIR", "HADOOP_HOME", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"libhdfs\.so"):
        open_origin("hdfs://host/path", OriginOptions(client="libhdfs"))
    assert open_origin("hdfs://host/path", OriginOptions(client="native")).url == "hdfs://host/path"
    for url, client in (
        ("file:///tmp", "libhdfs"),
        ("hdfs://host/path", "other"),
        ("viewfs://t/p", "libhdfs"),
    ):
        with pytest.raises(ConfigError, match="has no client") as caught:
            open_origin(url, OriginOptions(client=client))
        assert caught.value.mend


def test_the_url_asks_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARROW_LIBHDFS_DIR", "HADOOP_HOME", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"libhdfs\.so"):
        open_origin("hdfs+libhdfs://host/path")


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    origin = ArrowOrigin(LocalFileSystem(), "arrow+local://", str(tmp_path / "file"), 30)
    with pytest.raises(NotFound) as caught:
        origin.check()
    assert str(caught.value) == (
        f"arrow+local://{tmp_path}/file is a file: "
        f"name the directory that it lies in, arrow+local://{tmp_path}"
    )
