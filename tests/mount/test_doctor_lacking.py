"""`fusestripe doctor` on a machine that lacks each thing in turn: it names it, and what mends it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.lacking import USER, run_lacking

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can take something from a machine")


class Case(NamedTuple):
    """What lacks, and what is said of it. ``also``: other findings that are not well for want of the same."""

    name: str
    what: str
    level: str
    says: str
    mend: str
    lack: str = ""
    arguments: Sequence[str] = ()
    without: Sequence[str] = ()
    user: int = 0
    through: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    also: Sequence[str] = ()
    config: str = ""


AWS_LOGIN = "[default]\nlogin_session = arn:aws:sts::123456789012:assumed-role/me\nregion = us-east-1\n"
SLURM = '[[route]]\nsource = "file:///srv/home"\n[peers]\nslurm = true\ntoken_file = "/srv/token"\n'
TOKEN = "head -c 32 /dev/urandom | base64 > token; chmod 600 token"
NO_TOOLS = {"PATH": "/srv/bin"}
OF_APT = "ln -s /usr/bin/apt-get bin/"

FUSE = (
    Case("no device", "fuse", "fail", "/dev/fuse is missing", "modprobe fuse", "bare_devices"),
    Case(
        "a kernel without FUSE",
        *("fuse", "fail", "the kernel has no FUSE", "modprobe fuse"),
        "bare_devices; mknod -m 0666 /dev/fuse c 10 254",
    ),
    Case(
        "no right to open the device",
        *("fuse", "fail", "this user may not open /dev/fuse", "chmod 666 /dev/fuse"),
        "bare_devices; mknod -m 0600 /dev/fuse c 10 229",
        user=USER,
    ),
    Case(
        "no fusermount3, on Debian",
        *("fusermount3", "fail", "missing", "as root: apt install fuse3"),
        OF_APT,
        user=USER,
        environment=NO_TOOLS,
        also=["fuse"],
    ),
    Case(
        "no fusermount3, on Fedora",
        *("fusermount3", "fail", "missing", "as root: dnf install fuse3"),
        "install -m 0755 /dev/null bin/dnf",
        user=USER,
        environment=NO_TOOLS,
        also=["fuse"],
    ),
    Case(
        "no fusermount3, as root",
        "fusermount3",
        "warning",
        "only root can mount",
        "fuse3",
        environment=NO_TOOLS,
    ),
    Case(
        "fusermount3 without its right",
        *("fusermount3", "fail", "not setuid root", "chmod u+s /usr/bin/fusermount3"),
        "install -m 0755 /usr/bin/fusermount3 bin/; mount --bind bin/fusermount3 /usr/bin/fusermount3",
        user=USER,
    ),
    Case(
        "no CAP_SYS_ADMIN",
        *("fuse", "fail", "CAP_SYS_ADMIN is missing", "--cap-add SYS_ADMIN"),
        through=["setpriv", "--bounding-set=-sys_admin"],
    ),
    Case(
        "no passthrough for users",
        *("passthrough", "warning", "it takes CAP_SYS_ADMIN: mount as root", "--cap-add SYS_ADMIN"),
        user=USER,
    ),
    Case("no pyfuse3", "pyfuse3", "fail", "not installed", "pip install pyfuse3", without=["pyfuse3"]),
    Case(
        "no libfuse",
        *("pyfuse3", "fail", "libfuse3.so", "as root: apt install fuse3"),
        'for at in $(ldconfig -p | sed -n "s/.*=> \\(.*libfuse3.so.*\\)/\\1/p"); do'
        ' mount --bind /dev/null "$at"; done',
    ),
    Case(
        "allow_other, and /etc/fuse.conf without it",
        *("allow_other", "fail", "does not say user_allow_other", "echo user_allow_other >> /etc/fuse.conf"),
        "touch fuse.conf; mount --bind fuse.conf /etc/fuse.conf",
        ["-o", "allow_other"],
        user=USER,
        also=["fuse"],
    ),
)

MACHINE = (
    *(
        Case(
            f"too old a kernel for {what}",
            *(what, "warning", "", "upgrade the kernel"),
            through=["setarch", "--uname-2.6"],
        )
        for what in ("kernel", "channel", "passthrough", "keeper")
    ),
    Case(
        "a /sys that cannot be written",
        *("read-ahead", "warning", "/sys/class/bdi cannot be written", "mount -o remount,rw /sys"),
        "mount -o remount,bind,ro /sys",
    ),
    Case(
        "no helper for mount(8)",
        *("mount.fusestripe", "warning", "/etc/fstab do not know it", "/sbin/mount.fusestripe"),
        "mount -t tmpfs none /sbin",
        environment={"PATH": "/usr/bin"},
    ),
    Case(
        "little memory",
        *("memory", "warning", "256 MiB available, less than the 1 GiB", "--memory 128MiB"),
        "sed 's/^MemAvailable:.*/MemAvailable: 262144 kB/' /proc/meminfo > meminfo;"
        " mount --bind meminfo /proc/meminfo",
    ),
    Case(
        "settings that nobody knows",
        *("settings", "fail", 'unknown key "sise"', "size"),
        config='[cache]\nsise = "1GiB"\n',
    ),
)

EXTRAS = (
    *(
        Case(
            f"{source} without its extra",
            *("route /", "fail", package, f"pip install 'fusestripe[{extra}]'"),
            arguments=[source],
            without=[package],
        )
        for source, package, extra in (
            ("hdfs://nameservice/ckpt", "hdfs_native", "hdfs"),
            ("viewfs://table/ckpt", "hdfs_native", "hdfs"),
            ("hdfs+libhdfs://nameservice/ckpt", "pyarrow", "arrow"),
        )
    ),
    Case(
        "gs:// without google-auth",
        *("route /", "fail", "google-auth", "pip install 'fusestripe[gcs]'"),
        arguments=["gs://bucket"],
        without=["google.auth"],
    ),
    Case(
        "az:// without azure-identity",
        *("route /", "fail", "Azure", "pip install 'fusestripe[azure]'"),
        arguments=["az://container"],
        without=["azure.identity"],
        environment={"AZURE_STORAGE_ACCOUNT": "account"},
    ),
    Case(
        "`aws login` without awscrt",
        *("route /", "fail", "`aws login` need the package awscrt", "pip install 'fusestripe[aws]'"),
        f"printf '%s' '{AWS_LOGIN}' > aws",
        ["s3://bucket"],
        without=["awscrt"],
        environment={"AWS_CONFIG_FILE": "/srv/aws"},
    ),
    Case(
        "peers without pyarrow",
        *("peers", "fail", "pyarrow", "pip install 'fusestripe[peers]'"),
        without=["pyarrow"],
        config=SLURM,
    ),
    Case(
        "nodes of Slurm without python-hostlist",
        *("peers", "fail", "python-hostlist", "pip install 'fusestripe[peers]'"),
        TOKEN,
        without=["hostlist"],
        environment={"SLURM_JOB_NODELIST": "node[1-3]"},
        config=SLURM,
    ),
    Case(
        "any, where no store is named",
        *("extras", "ok", "hdfs://", "pip install 'fusestripe[hdfs,aws]'"),
        without=["hdfs_native", "awscrt"],
    ),
)

STORES = (
    Case(
        "credentials for S3",
        *("route /", "fail", "no AWS credentials", "AWS_ACCESS_KEY_ID"),
        arguments=["s3://bucket"],
    ),
    Case(
        "credentials for what no route names",
        *("credentials", "warning", "no AWS credentials", "AWS_ACCESS_KEY_ID"),
    ),
    Case(
        "libhdfs",
        *("route /", "fail", "libhdfs.so", "HADOOP_HOME"),
        arguments=["hdfs+libhdfs://nameservice/ckpt"],
    ),
    Case(
        "a JVM",
        *("route /", "fail", "needs a JVM", "as root: apt install default-jre-headless"),
        "touch libhdfs.so; for at in /usr/lib/jvm /usr/java; do [ ! -d $at ] || mount -t tmpfs no $at; done",
        ["hdfs+libhdfs://nameservice/ckpt"],
        environment={"ARROW_LIBHDFS_DIR": "/srv"},
    ),
    Case(
        "Hadoop's jars",
        *("route /", "fail", "CLASSPATH", "hadoop classpath --glob"),
        "mkdir -p jvm/lib/server; touch libhdfs.so jvm/lib/server/libjvm.so",
        ["hdfs+libhdfs://nameservice/ckpt"],
        environment={"ARROW_LIBHDFS_DIR": "/srv", "JAVA_HOME": "/srv/jvm"},
    ),
    Case(
        "a job of Slurm",
        *("peers", "warning", "SLURM_JOB_NODELIST is not set", "srun fusestripe doctor"),
        TOKEN,
        config=SLURM,
    ),
    Case("the token of the peers", "peers", "fail", "/srv/token", "base64 > /srv/token", config=SLURM),
    Case(
        "a server that answers",
        *("route /", "fail", "connection refused", ""),
        arguments=["http://127.0.0.1:1/models"],
    ),
)

CACHE = (
    Case(
        "the right to write to it",
        *("cache disk", "fail", "permission denied", f"install -d -m 700 -o {USER} /srv/of_root/cache"),
        "mkdir of_root",
        ["--cache-dir", "/srv/of_root/cache"],
        user=USER,
    ),
    Case(
        "being one's own",
        *("cache disk", "fail", "belongs to another user", "choose a directory of your own"),
        "install -d -m 1777 shared",
        ["--cache-dir", "/srv/shared"],
        user=USER,
    ),
    Case(
        "being closed to others",
        *("cache disk", "fail", "every user can write to", "chmod o-w /srv/open"),
        "install -d -m 0777 open",
        ["--cache-dir", "/srv/open"],
    ),
    Case(
        "a directory above it",
        *("cache disk", "fail", "/srv/file is not a directory", "--cache-dir"),
        "touch file",
        ["--cache-dir", "/srv/file/cache"],
    ),
    Case(
        "a disk that takes writes",
        *("cache disk", "fail", "read-only", "mount -o remount,rw /srv/cache"),
        "mount -t tmpfs -o ro none cache",
    ),
    Case(
        "a disk", "cache type", "warning", "is in memory (tmpfs)", "--cache-dir", "mount -t tmpfs none cache"
    ),
    Case(
        "O_DIRECT",
        *("cache disk", "warning", "without O_DIRECT", "local disk"),
        "mount -t ramfs none cache",
        also=["cache room"],
    ),
    Case(
        "more than a layer of a container",
        *("cache type", "warning", "container's own layer (overlay)", "-v /nvme:/srv/cache"),
        "mkdir -p layer; mount -t tmpfs none layer; mkdir layer/upper layer/work;"
        " mount -t overlay -o lowerdir=home,upperdir=layer/upper,workdir=layer/work none cache",
    ),
    Case(
        "a disk of this machine",
        *("cache type", "warning", "is on no disk of this machine (fuse", "local NVMe"),
        "mkdir behind; bindfs behind cache",
    ),
    Case(
        "room",
        *("cache room", "fail", "all of it in reserve (1 GiB)", "fusestripe cache clear"),
        "mount -t tmpfs -o size=8m none cache",
    ),
    Case(
        "enough room",
        *("cache room", "warning", "only 2 GiB free", "fusestripe cache clear"),
        "mount -t tmpfs -o size=2g none cache",
    ),
)


NOTHING = Case("nothing", "", "", "", "")


def looked(tmp_path: Path, case: Case) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status and the findings by what they are of."""
    lack = case.lack
    if case not in (*CACHE, NOTHING):  # that no disk is measured again and again
        lack = f"mount -t tmpfs -o size=12g,mode=0700,uid={case.user} none cache; {lack}"
    arguments = list(case.arguments)
    if case.config:
        (tmp_path / "config.toml").write_text(case.config)
        arguments += ["--config", "/srv/config.toml"]
    if "--cache-dir" not in arguments:
        arguments += ["--cache-dir", "/srv/cache"]
    done = run_lacking(
        tmp_path,
        *("doctor", "--json", *arguments),
        lack=lack,
        without=case.without,
        user=case.user,
        through=case.through,
        environment=case.environment,
    )
    assert done.stderr == ""
    return done.returncode, {finding["what"]: finding for finding in json.loads(done.stdout)}


def test_nothing_lacks(tmp_path: Path) -> None:
    status, found = looked(tmp_path, NOTHING)
    assert status == 0
    assert [finding for finding in found.values() if finding["level"] == "fail"] == []


@pytest.mark.parametrize(
    "case", [*FUSE, *MACHINE, *EXTRAS, *STORES, *CACHE], ids=lambda case: case.name.replace("/", "")
)
def test_what_lacks_is_named_with_its_mend(tmp_path: Path, case: Case) -> None:
    status, found = looked(tmp_path, case)
    finding = found[case.what]
    assert finding["level"] == case.level
    assert case.says in finding["text"]
    assert case.mend in finding["mend"]
    assert "\n" not in finding["text"] + finding["mend"]
    failed = {what for what, each in found.items() if each["level"] == "fail"}
    assert failed <= {case.what, *case.also}  # and nothing else is blamed
    assert status == bool(failed)
