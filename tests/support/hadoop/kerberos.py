"""A Kerberos realm on loopback: MIT's KDC, and a cluster that lets in nobody without a ticket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.support.seaweed import free_ports

__all__ = ["Realm", "secure_core", "secure_settings"]

REALM = "FUSESTRIPE.TEST"
SERVERS = f"hdfs/localhost@{REALM}"
WEB = f"HTTP/localhost@{REALM}"
START_SECONDS = 20.0

_KRB5_CONF = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  ticket_lifetime = 1h
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""
_KDC_CONF = """
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {directory}/principal
    key_stash_file = {directory}/stash
    max_life = 24h
  }}
[logging]
  kdc = FILE:{directory}/kdc.log
"""


class Realm:
    """The KDC, the servers' keytab, and "alice" with a keytab of her own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_ports(1)[0]
        self.servers_keytab = directory / "servers.keytab"
        self.alice_keytab = directory / "alice.keytab"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What makes this the realm of a process."""
        return {"KRB5_CONFIG": str(self._directory / "krb5.conf")}

    def __enter__(self) -> Realm:
        names = {"realm": REALM, "port": self._port, "directory": self._directory}
        (self._directory / "krb5.conf").write_text(_KRB5_CONF.format(**names))
        (self._directory / "kdc.conf").write_text(_KDC_CONF.format(**names))
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master of a realm for tests")
        for principal, keytab in (
            (SERVERS, self.servers_keytab),
            (WEB, self.servers_keytab),
            (f"alice@{REALM}", self.alice_keytab),
        ):
            self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -norandkey -k {keytab} {principal}")
        self._process = subprocess.Popen(
            [_program("krb5kdc"), "-n", "-r", REALM], env=self._everything(), stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def ticket(self, cache: Path, lifetime: str) -> None:
        """Get alice a ticket into ``cache`` that lives for ``lifetime`` ("10s")."""
        self._run(
            "kinit", "-l", lifetime, "-c", str(cache), "-k", "-t", str(self.alice_keytab), f"alice@{REALM}"
        )

    def is_valid(self, cache: Path) -> bool:
        """Whether ``cache`` holds a ticket that has not expired (klist(1), -s)."""
        done = subprocess.run([_program("klist"), "-s", "-c", str(cache)], env=self._everything())
        return done.returncode == 0

    def _everything(self) -> dict[str, str]:
        return {**os.environ, **self.environment, "KRB5_KDC_PROFILE": str(self._directory / "kdc.conf")}

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), *arguments],
            env=self._everything(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


def secure_core() -> dict[str, str]:
    """core-site.xml of a cluster that wants Kerberos, and encrypts its calls."""
    return {"hadoop.security.authentication": "kerberos", "hadoop.rpc.protection": "privacy"}


def secure_settings(realm: Realm) -> dict[str, str]:
    """hdfs-site.xml for the same: tokens for blocks, and blocks encrypted on their way."""
    settings = {"dfs.block.access.token.enable": "true", "dfs.data.transfer.protection": "privacy"}
    for server in ("namenode", "datanode"):
        settings[f"dfs.{server}.kerberos.principal"] = SERVERS
        settings[f"dfs.{server}.keytab.file"] = str(realm.servers_keytab)
    settings["dfs.web.authentication.kerberos.principal"] = WEB
    settings["dfs.web.authentication.kerberos.keytab"] = str(realm.servers_keytab)
    # Else a DataNode wants ports below 1024, or certificates for its web page.
    settings["ignore.secure.ports.for.testing"] = "true"
    return settings


def _program(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(
            f"{name} is not installed: apt-get install krb5-kdc krb5-admin-server krb5-user"
        )
    return found
