"""An origin that is down for a while, names, certificates, credentials, the clock: at the mount and in it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_origin_faults import read_of, timed_error
from tests.mount.test_refusals import refuse
from tests.support.certificates import Certificates, make_certificates
from tests.support.credential_server import credential_server
from tests.support.google_server import GoogleServer
from tests.support.mounted import Mounted, mounted, until
from tests.support.mounted_store import KIB, MountedStore, content
from tests.support.preload import Preload, build_preload
from tests.support.proxy import Fault, Proxy
from tests.support.relays import Relay, running
from tests.support.seaweed import ACCESS_KEY, RENEWED_KEY, SECRET_KEY, SeaweedServer
from tests.support.token_gate import TokenGate

STRIPE = 64 * KIB
SIZE = 16 * STRIPE
DATA = content(SIZE, 3)
TIMEOUT = 2.0
MOST = 2 * TIMEOUT + 3
FAR = 12 * STRIPE


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Preload:
    return build_preload(tmp_path_factory.mktemp("preload"))


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    path = tmp_path / "mnt"
    path.mkdir()
    return path


def mount_at(
    store: MountedStore, endpoint: str, environment: Mapping[str, str] | None = None, **settings: Any
) -> AbstractContextManager[Mounted]:
    """The store's bucket by way of ``endpoint``."""
    return mounted(
        f"s3://{store.bucket}",
        store.directory / "mnt",
        cache_dir=store.directory / "cache",
        environment={**store.server.environment, "AWS_ENDPOINT_URL": endpoint, **(environment or {})},
        complaints=True,
        **{"stripe_size": STRIPE, "timeout": TIMEOUT, **settings},
    )


def reads(path: Path) -> bool:
    """Whether it can be read, and all of it is right."""
    found = read_of(path)
    assert found in (None, DATA)
    return found is not None


def sever(proxy: Proxy) -> None:
    """Whoever wants anything has to connect anew."""
    proxy.refuse()
    proxy.accept()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor that the kernel reads nothing ahead for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        yield descriptor
    finally:
        os.close(descriptor)


# An origin that is down for a while.


def throttle(proxy: Proxy) -> None:
    proxy.set_faults([Fault("status:503:SlowDown", times=0)])


DOWN: Mapping[str, Callable[[Proxy], None]] = {
    "refuse": Proxy.refuse,
    "ignore": Proxy.ignore,
    "throttle": throttle,
}
LONG = bool(os.environ.get("FUSESTRIPE_LONG"))
DOWN_SECONDS = 60.0 if LONG else 1.0
LATE_SECONDS = 10.0
"""So long after the origin is back a reader may wait for its bytes: the longest pause between two tries."""


@pytest.mark.timeout(600)  # three minutes and a half in the long form
def test_a_reader_waits_for_an_origin_that_comes_back(store: MountedStore) -> None:
    for name in DOWN:
        store.put(name, DATA)
    with store.mount(timeout=DOWN_SECONDS + 60, stripe_count=2) as mount:
        for name, go_down in DOWN.items():
            with opened(mount.path / name) as descriptor, ThreadPoolExecutor(1) as thread:
                assert os.pread(descriptor, 4096, 0) == DATA[:4096]
                go_down(store.proxy)
                store.proxy.reset()
                rest = thread.submit(os.pread, descriptor, 4096, FAR)
                until_failed_for(mount, DOWN_SECONDS)
                assert not rest.done()
                store.proxy.set_faults([])
                store.proxy.accept()
                back = time.monotonic()
                assert rest.result(20) == DATA[FAR : FAR + 4096]
                late = time.monotonic() - back
                print(f"{name}: {DOWN_SECONDS:g} s down, {late:.1f} s late")
                assert late < LATE_SECONDS + 1
                assert (mount.path / name).read_bytes() == DATA
            assert len(store.requests("GET")) < 2 * SIZE / STRIPE + 30


def until_failed_for(mount: Mounted, seconds: float) -> None:
    """Return once requests of the mount have failed, for so long."""
    before = mount.status()["origin"]["retries"]
    began = time.monotonic()
    until(
        lambda: mount.status()["origin"]["retries"] > before and time.monotonic() - began > seconds,
        seconds + 20,
    )


# Names.


def test_a_name_that_is_not_there_at_mount(
    s3_server: SeaweedServer, mountpoint: Path, tmp_path: Path, preload: Preload
) -> None:
    environment = {**s3_server.environment, **preload.environment()}
    environment["AWS_ENDPOINT_URL"] = s3_server.endpoint.replace("127.0.0.1", "localhost")
    with preload.no_names():
        line = refuse(
            "s3://bucket", mountpoint, "--cache-dir", str(tmp_path / "cache"), environment=environment
        )
    assert "no such host name: is the endpoint right?" in line


@pytest.mark.parametrize(
    ("waits", "most", "cause"), [(0, MOST, "no such host name"), (30, MOST + 5, "no answer in time")]
)
def test_names_that_are_not_found_any_more(
    store: MountedStore, preload: Preload, waits: int, most: float, cause: str
) -> None:
    store.put("file", DATA)
    endpoint = store.proxy.endpoint.replace("127.0.0.1", "localhost")
    with mount_at(store, endpoint, preload.environment(names_wait=waits)) as mount:
        with opened(mount.path / "file") as descriptor:
            assert os.pread(descriptor, 4096, 0) == DATA[:4096]
            with preload.no_names():
                sever(store.proxy)
                number, seconds = timed_error(lambda: os.pread(descriptor, 4096, FAR))
            assert number == errno.EIO
            assert 0.8 * TIMEOUT < seconds < most
            (line,) = mount.complaints()
            assert re.search(rf" ERROR .*/file\?endpoint=localhost:\d+: stripe 12: .*{cause}", line)
        until(lambda: reads(mount.path / "file"))


# Certificates.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory, preload: Preload) -> Mapping[str, Certificates]:
    """A good one, and others: of no authority that is known, of long ago, of another host."""
    directory = tmp_path_factory.mktemp("certificates")
    long_ago = preload.environment(clock_ahead=-10 * 86400)
    return {
        "good": make_certificates(directory / "good"),
        "unknown": make_certificates(directory / "unknown"),
        "expired": make_certificates(directory / "expired", environment=long_ago),
        "other name": make_certificates(directory / "other", "DNS:example.com"),
    }


WRONG = {
    "unknown": "unable to get local issuer certificate|self.signed certificate|signature failure",
    "expired": "certificate has expired",
    "other name": "(IP address|Hostname) mismatch",
}


@pytest.fixture(scope="module")
def bundle(certificates: Mapping[str, Certificates], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authorities that are known: all but one."""
    path = tmp_path_factory.mktemp("bundle") / "bundle.pem"
    known = (each.authority.read_text() for name, each in certificates.items() if name != "unknown")
    path.write_text("".join(known))
    return path


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_certificate_at_mount(
    store: MountedStore,
    certificates: Mapping[str, Certificates],
    bundle: Path,
    mountpoint: Path,
    tmp_path: Path,
    wrong: str,
) -> None:
    relay = Relay(store.proxy.endpoint.partition("//")[2], tls=certificates[wrong].server_context())
    with running(relay):
        environment = {
            **store.server.environment,
            "AWS_ENDPOINT_URL": f"https://{relay.netloc}",
            "AWS_CA_BUNDLE": str(bundle),
        }
        line = refuse(
            f"s3://{store.bucket}",
            mountpoint,
            *("--cache-dir", str(tmp_path / "cache")),
            environment=environment,
        )
    assert re.search(rf"TLS failed \(.*({WRONG[wrong]}).*\): check the certificate", line)


def test_a_certificate_that_becomes_wrong(
    store: MountedStore, certificates: Mapping[str, Certificates], bundle: Path
) -> None:
    good = certificates["good"].server_context()
    relay = Relay(store.proxy.endpoint.partition("//")[2], tls=good)
    for wrong in WRONG:
        store.put(wrong, DATA)
    with (
        running(relay),
        mount_at(store, f"https://{relay.netloc}", {"AWS_CA_BUNDLE": str(bundle)}) as mount,
    ):
        for number_of_lines, wrong in enumerate(WRONG, start=1):
            with opened(mount.path / wrong) as descriptor:
                assert os.pread(descriptor, 4096, 0) == DATA[:4096]
                relay.tls = certificates[wrong].server_context()
                sever(store.proxy)
                number, seconds = timed_error(partial(os.pread, descriptor, 4096, FAR))
                assert number == errno.EIO
                assert 0.8 * TIMEOUT < seconds < MOST
                assert len(mount.complaints()) == number_of_lines
                line = mount.complaints()[-1]
                assert re.search(rf"/{wrong}\?endpoint=.*: stripe 12: .*TLS failed \(.*{WRONG[wrong]}", line)
            relay.tls = good
        sever(store.proxy)
        for wrong in WRONG:
            until(partial(reads, mount.path / wrong))


# Credentials.


class Role:
    """Credentials from a container's endpoint, which hands out those that are good now."""

    def __init__(self, directory: Path) -> None:
        self._source = credential_server(ACCESS_KEY, SECRET_KEY)

    def __enter__(self) -> Role:
        self._server = self._source.__enter__()
        self.environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": self._server.url}
        return self

    def __exit__(self, *exception: object) -> None:
        self._source.__exit__(None, None, None)

    def renew(self) -> None:
        self._server.access_key = RENEWED_KEY


class File:
    """Credentials in a file of ~/.aws, which something else writes anew."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "credentials"
        self.environment = {"AWS_SHARED_CREDENTIALS_FILE": str(self._path)}
        self._write(ACCESS_KEY)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *exception: object) -> None:
        self._path.unlink()

    def renew(self) -> None:
        self._write(RENEWED_KEY)

    def _write(self, key: str) -> None:
        self._path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET_KEY}\n")


EXPIRED = Fault("status:400:ExpiredToken", times=0, key=ACCESS_KEY)


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize("source", [Role, File])
def test_credentials_that_expire_in_mid_file(
    store: MountedStore, tmp_path: Path, source: type[Role] | type[File]
) -> None:
    """Renewed, they are not noticed; not renewed, they are one error at once, until they are."""
    store.put("file", DATA)
    store.put("later", DATA)
    store.put("dir/file", b"x")
    with source(tmp_path) as keys:
        environment = {"AWS_ENDPOINT_URL": store.proxy.endpoint, "AWS_REGION": "us-east-1"}
        with mounted(
            f"s3://{store.bucket}",
            tmp_path / "mnt",
            cache_dir=tmp_path / "cache",
            environment={**environment, **keys.environment},
            complaints=True,
            stripe_size=STRIPE,
            stripe_count=4,
            timeout=60,
        ) as mount:
            with opened(mount.path / "file") as descriptor, opened(mount.path / "later") as later:
                assert os.pread(descriptor, 4096, 0) == DATA[:4096]
                assert os.pread(later, 4096, 0) == DATA[:4096]
                store.proxy.set_faults([EXPIRED])
                store.proxy.reset()
                number, seconds = timed_error(lambda: os.pread(later, 4096, FAR))
                assert number == errno.EACCES
                assert seconds < MOST
                (line,) = mount.complaints()
                assert re.search(r"/later\?endpoint=.*: stripe 12: .*have expired .*: get new ones", line)
                assert len(store.requests("GET")) <= 4
                keys.renew()
                store.proxy.reset()
                assert os.pread(descriptor, SIZE, 0) == DATA
                until(lambda: reads(mount.path / "later"))
                assert os.pread(later, 4096, FAR) == DATA[FAR : FAR + 4096]
                assert (mount.path / "dir" / "file").read_bytes() == b"x"
                assert len(store.requests("GET")) <= 2 * SIZE / STRIPE + 4 + 1
            assert len(mount.complaints()) == 1


def test_a_token_that_is_withdrawn_in_mid_file(
    google_server: GoogleServer, google_bucket: str, tmp_path: Path
) -> None:
    google_server.put(google_bucket, "file", DATA)
    with TokenGate(tmp_path / "gate", google_server.endpoint) as gate:
        metadata = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP"), f"127.0.0.1:{gate.port}")
        with (
            mounted(
                f"gs://{google_bucket}",
                tmp_path / "mnt",
                cache_dir=tmp_path / "cache",
                environment={**metadata, "HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)},
                endpoint=gate.endpoint,
                stripe_size=STRIPE,
            ) as mount,
            opened(mount.path / "file") as descriptor,
        ):
            assert os.pread(descriptor, 4096, 0) == DATA[:4096]
            gate.renew("another-token-from-now-on")
            assert os.pread(descriptor, SIZE, 0) == DATA


# The clock.


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_clock_that_is_wrong(store: MountedStore, preload: Preload, ahead: int) -> None:
    """The real server refuses the first request; those after it carry the server's time."""
    store.put("file", DATA)
    store.proxy.reset()
    with mount_at(store, store.proxy.endpoint, preload.environment(clock_ahead=ahead)) as mount:
        assert (mount.path / "file").read_bytes() == DATA
        (line,) = mount.complaints()
        how = "ahead of" if ahead > 0 else "behind"
        assert re.search(rf" WARNING .*this machine's clock is 3(600|599|601) s {how} that of http://", line)
    refused = [one for one in store.proxy.log() if one.status == 403]
    assert len(refused) == 1


def test_doctor_tells_of_a_clock_that_is_wrong(store: MountedStore, preload: Preload) -> None:
    store.put("file", DATA)
    environment = {
        **os.environ,
        **store.server.environment,
        "AWS_ENDPOINT_URL": store.proxy.endpoint,
        **preload.environment(clock_ahead=3600),
    }
    command = ["doctor", f"s3://{store.bucket}", "--json", "--cache-dir", str(store.directory / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "fusestripe", *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stderr == ""
    (found,) = (each for each in json.loads(done.stdout) if each["what"] == "route /")
    assert (found["level"], found["mend"]) == ("warning", "timedatectl set-ntp true")
    assert re.search(r"file can be read; this machine's clock is 3(600|599|601) s ahead of", found["text"])


def test_a_clock_that_is_set_right_meanwhile(store: MountedStore) -> None:
    """A server that says it has our time, and refuses it all the same, is not asked again."""
    store.put("file", DATA)
    with store.mount(complaints=True, timeout=60) as mount, opened(mount.path / "file") as descriptor:
        assert os.pread(descriptor, 4096, 0) == DATA[:4096]
        now = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        skewed = Fault("status:403:RequestTimeTooSkewed", times=0, headers=(("Date", now),))
        store.proxy.set_faults([skewed])
        number, seconds = timed_error(lambda: os.pread(descriptor, 4096, FAR))
        assert number == errno.EACCES
        assert seconds < MOST
        (line,) = mount.complaints()
        assert "this machine's clock is wrong" in line
        assert "set the clock" in line
