"""The scripts of mount/slurm in a real Slurm of two nodes, for two users who are not root."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import stat
import subprocess

import pytest

from tests.support.machine import ADA, BOB, CODE, HOMES
from tests.support.mounted_store import content
from tests.support.seaweed import SeaweedServer
from tests.support.slurm import NODES, SlurmCluster, eventually

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a Prolog runs as root")

MIB = 1024 * 1024
RAW = content(3 * MIB)
DIGEST = hashlib.sha256(RAW).hexdigest()
ON_N1 = "--nodelist=n1"
READ = 'sha256sum < "$FUSESTRIPE_MOUNT/step-1/raw"'
HOLD = "while [ ! -e /srv/jobs/go-$SLURM_JOB_ID ]; do sleep 0.1; done"


@pytest.fixture
def source(s3_server: SeaweedServer, s3_bucket: str) -> str:
    """The URL of a run with a checkpoint of 3 MiB."""
    s3_server.put(s3_bucket, "run/step-1/raw", RAW)
    return f"s3://{s3_bucket}/run"


def said_by(slurm: SlurmCluster, job: int | str, text: str) -> None:
    """Wait until the job has said ``text``."""
    eventually(lambda: text in slurm.output(job))


def let_go(slurm: SlurmCluster, job: int) -> None:
    """End a job that is held by HOLD, as it would by itself."""
    (slurm.directory / f"jobs/go-{job}").touch()


def are_idle(slurm: SlurmCluster) -> bool:
    return [slurm.state_of(node) for node in NODES] == ["IDLE", "IDLE"]


@pytest.mark.torch
def test_a_job_loads_its_checkpoint_in_its_first_line_on_every_node(
    slurm: SlurmCluster, source: str, s3_server: SeaweedServer, s3_bucket: str
) -> None:
    import torch

    tensors = {"w": torch.randn(1000, 1000, generator=torch.Generator().manual_seed(3))}
    written = io.BytesIO()
    torch.save(tensors, written)
    s3_server.put(s3_bucket, "run/step-9/model.pt", written.getvalue())
    script = slurm.directory / "jobs/load.py"
    script.write_text(
        "import hashlib, os, torch\n"
        "state = torch.load(os.environ['FUSESTRIPE_MOUNT'] + '/step-9/model.pt', mmap=True)\n"
        "print('loaded', hashlib.sha256(state['w'].numpy().tobytes()).hexdigest())\n"
    )
    job = slurm.submit(
        "python load.py; srun sh -c 'echo $SLURMD_NODENAME; sha256sum < $FUSESTRIPE_MOUNT/step-1/raw'",
        "--nodes=2",
        comment=f"x=1 fusestripe:source={source},prefetch=step-9,wait=1m",
    )
    assert slurm.await_end(job, 90) == "COMPLETED", slurm.output(job)
    first, *rest = slurm.output(job).splitlines()
    assert first == f"loaded {hashlib.sha256(tensors['w'].numpy().tobytes()).hexdigest()}"
    assert sorted(rest) == sorted([f"{DIGEST}  -", "n1", f"{DIGEST}  -", "n2"])
    assert are_idle(slurm)
    for node in NODES:
        cache = slurm.directory / f"cache-{node}/{ADA}"
        assert (cache.stat().st_uid, stat.S_IMODE(cache.stat().st_mode)) == (ADA, 0o700)
        assert list(cache.rglob("*.data")) != []


def test_jobs_of_an_array_have_each_their_own_mount(slurm: SlurmCluster, source: str) -> None:
    """While all three are there; and when the first has ended the others are as they were."""
    meet = (
        'echo "at $FUSESTRIPE_MOUNT"; touch /srv/jobs/here-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID; '
        "while [ $(ls /srv/jobs/here-$SLURM_ARRAY_JOB_ID-* | wc -l) -lt 3 ]; do sleep 0.1; done; "
        f"[ $SLURM_ARRAY_TASK_ID = 0 ] || {HOLD}; {READ}"
    )
    array = slurm.submit(meet, "--array=0-2", ON_N1, comment=f"fusestripe:source={source}")
    eventually(lambda: slurm.job(f"{array}_0")["JobState"] == "COMPLETED", 60)
    others = [slurm.job(f"{array}_{task}")["JobId"] for task in (1, 2)]
    mine = [f"/srv/mounts-n1/{job}" for job in others]
    assert sorted(mount.mountpoint for mount in slurm.mounts()) == sorted(mine)
    for job in others:
        let_go(slurm, int(job))
    places = set()
    for task in range(3):
        assert slurm.await_end(f"{array}_{task}") == "COMPLETED"
        at, digest = slurm.output(f"{array}_{task}").splitlines()
        assert digest.split()[0] == DIGEST
        places.add(at)
    assert len(places) == 3


def test_another_user_sees_nothing_of_a_job(slurm: SlurmCluster, source: str) -> None:
    data = slurm.directory / "data"
    data.mkdir(exist_ok=True)
    (data / "file").write_text("of all\n")
    hers = slurm.submit(f"{READ}; {HOLD}; {READ}", ON_N1, comment=f"fusestripe:source={source}")
    said_by(slurm, hers, DIGEST)
    look = (
        f"cat $FUSESTRIPE_MOUNT/file; ls /srv/mounts-n1/{hers}; ls /srv/state-n1/{hers}/run; "
        f"ls /srv/cache-n1/{ADA}; fusestripe unmount /srv/mounts-n1/{hers}; fusestripe status"
    )
    his = slurm.submit(look, ON_N1, user=BOB, comment="fusestripe:source=file:///srv/data")
    slurm.await_end(his)
    assert slurm.output(his).startswith("of all\n")
    assert slurm.output(his).count("Permission denied") == 3
    assert "belongs to user ada" in slurm.output(his)
    assert source not in slurm.output(his)
    let_go(slurm, hers)
    assert slurm.await_end(hers) == "COMPLETED"
    assert slurm.output(hers).count(DIGEST) == 2


def test_a_file_in_the_working_directory_asks(slurm: SlurmCluster, source: str) -> None:
    """Routes, and a table [job]; the comment stands over it. A file without that table asks for nothing."""
    directory = slurm.directory / "jobs/train"
    directory.mkdir(exist_ok=True)
    file = directory / "fusestripe.toml"
    routes = f'[[route]]\npath = "/run"\nsource = "{source}"\n'
    file.write_text(f'{routes}[job]\nprefetch = ["run/step-1"]\nwait = "1m"\n')
    shown = 'cat "$FUSESTRIPE_RUNTIME_DIR/prefetch.log"; sha256sum < "$FUSESTRIPE_MOUNT/run/step-1/raw"'
    by_file = slurm.submit(shown, ON_N1, directory="/srv/jobs/train")
    by_both = slurm.submit(
        shown,
        ON_N1,
        directory="/srv/jobs/train",
        comment="fusestripe:prefetch=run,mountpoint=/srv/home/ada/%j",
    )
    for job in (by_file, by_both):
        assert slurm.await_end(job) == "COMPLETED"
        assert DIGEST in slurm.output(job)
        assert "1 file, 3 MiB in" in slurm.output(job)
    home = slurm.directory / HOMES[ADA]
    assert f"{home.name}/{by_both}" in slurm.output(by_both)
    assert not (home / str(by_both)).exists()
    file.write_text(routes)
    outer = "--export=ALL,FUSESTRIPE_MOUNT=/srv/mounts-n1/1,FUSESTRIPE_RUNTIME_DIR=/srv/state-n1/1/run"
    none = slurm.submit('echo "<$FUSESTRIPE_MOUNT>"', ON_N1, outer, directory="/srv/jobs/train")
    slurm.await_end(none)
    assert slurm.output(none) == "<>\n"


def test_a_job_asks_for_the_newest_whole_checkpoint(
    slurm: SlurmCluster, source: str, s3_server: SeaweedServer, s3_bucket: str
) -> None:
    """Of which one is still being written."""
    for number, shards in ((20, 2), (30, 1)):
        index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
        directory = f"run/saved/checkpoint-{number}"
        for name in ("a", "b")[:shards]:
            s3_server.put(s3_bucket, f"{directory}/{name}.safetensors", bytes(1000))
        s3_server.put(s3_bucket, f"{directory}/model.safetensors.index.json", json.dumps(index).encode())
    job = slurm.submit(
        'cat "$FUSESTRIPE_RUNTIME_DIR/prefetch.log"',
        ON_N1,
        comment=f"fusestripe:source={source},prefetch=saved,latest,wait=1m",
    )
    assert slurm.await_end(job) == "COMPLETED"
    said = slurm.output(job)
    assert "checkpoint-20" in said
    assert "checkpoint-30" in said
    assert "3 files" in said


def test_a_request_that_fails_neither_keeps_the_job_nor_drains_the_node(
    slurm: SlurmCluster, source: str
) -> None:
    cases = (  # what the comment says, whose job it is, what its log says
        ("source=s3://no-such-bucket/x", ADA, "no-such-bucket"),
        (f"sorce={source}", ADA, "unknown key 'sorce': did you mean \"source\"?"),
        (f"source={source}", BOB, "the secret key is wrong"),
        (f"source={source},mountpoint=/srv/jobs", ADA, "is not this user's own"),
        ("source=s3://$(touch${IFS}/srv/jobs/run)`id`;id/x", ADA, "fusestripe: "),
    )
    script = 'echo "<$FUSESTRIPE_MOUNT>"; srun true'
    jobs = [slurm.submit(script, ON_N1, user=user, comment=f"fusestripe:{said}") for said, user, _ in cases]
    for job, (said, _, told) in zip(jobs, cases, strict=True):
        assert slurm.await_end(job, 60) == "COMPLETED", said
        first, *rest = slurm.output(job).splitlines()
        assert first.startswith("fusestripe: "), said
        assert told in first, said
        assert rest == ["<>"], said
    assert are_idle(slurm)
    assert not (slurm.directory / "jobs/run").exists()


def test_a_store_that_is_silent_is_given_up_in_time(slurm: SlurmCluster) -> None:
    slurm.configure(FUSESTRIPE_SECONDS="4", FUSESTRIPE_MAX_WAIT="0")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        job = slurm.submit("echo runs", ON_N1, comment=f"fusestripe:source=s3://b/x,endpoint={endpoint}")
        assert slurm.await_end(job, 60) == "COMPLETED"
    assert "fusestripe: the mount was not there in 4 s\n" in slurm.output(job)
    assert slurm.output(job).endswith("runs\n")
    assert are_idle(slurm)


def test_a_file_with_an_unknown_key_is_told_with_its_line(slurm: SlurmCluster, source: str) -> None:
    directory = slurm.directory / "jobs/wrong"
    directory.mkdir(exist_ok=True)
    (directory / "fusestripe.toml").write_text(f'[[route]]\nsource = "{source}"\n[job]\nprefech = ["x"]\n')
    job = slurm.submit("echo runs", directory="/srv/jobs/wrong")
    assert slurm.await_end(job) == "COMPLETED"
    told, *rest = slurm.output(job).splitlines()
    place = "fusestripe: /srv/jobs/wrong/fusestripe.toml:4"
    assert told == f'{place}: unknown key "prefech" in [job]: did you mean "prefetch"?'
    assert rest == ["runs"]


def test_a_prefetch_of_nothing_is_told_and_the_tree_is_there(slurm: SlurmCluster, source: str) -> None:
    job = slurm.submit(READ, comment=f"fusestripe:source={source},prefetch=step-100")
    assert slurm.await_end(job) == "COMPLETED"
    told, digest = slurm.output(job).splitlines()
    assert told == "fusestripe: prefetch: there is no 'step-100' in what is mounted"
    assert digest.split()[0] == DIGEST


def test_strict_keeps_the_job_from_the_node(slurm: SlurmCluster) -> None:
    """As Slurm has it for a Prolog that fails: the node is drained, and the job requeued and held."""
    slurm.configure(FUSESTRIPE_STRICT="1")
    job = slurm.submit("echo runs", ON_N1, comment="fusestripe:source=s3://no-such-bucket/x")
    eventually(lambda: "DRAIN" in slurm.state_of("n1"))
    eventually(lambda: slurm.job(job)["JobState"] == "PENDING")
    assert "runs" not in slurm.output(job)
    assert slurm.state_of("n2") == "IDLE"
    eventually(lambda: "no-such-bucket" in slurm.log("n1"))
    eventually(lambda: slurm.leavings() == [])


def test_a_cancelled_job_leaves_nothing_even_if_its_files_are_held(slurm: SlurmCluster, source: str) -> None:
    """By one of its processes that Slurm does not find; in spite of that the daemon ends with the job."""
    escape = "import os, time; file = open(os.environ['FUSESTRIPE_MOUNT'] + '/step-1/raw'); time.sleep(600)"
    script = f'(setsid python -c "{escape}" & ); {READ}; sleep 600'
    job = slurm.submit(script, ON_N1, comment=f"fusestripe:source={source},prefetch=step-1")
    said_by(slurm, job, DIGEST)
    (mount,) = slurm.mounts()
    assert mount.owner == ADA
    daemons = [process for process in slurm.daemons() if "fusestripe.daemon" in process.cmdline()]
    assert [process.uids().effective for process in daemons] == [ADA]
    told = daemons[0].environ()
    assert (told["HOME"], told["SLURM_JOB_ID"]) == (f"/srv/{HOMES[ADA]}", str(job))
    assert (told["SLURM_JOB_NODELIST"], told["SLURMD_NODENAME"]) == ("n1", "n1")
    held = [process for process, command in slurm.processes() if "time.sleep(600)" in " ".join(command)]
    slurm.run("scancel", str(job))
    try:
        assert slurm.await_end(job) == "CANCELLED"
        assert slurm.leavings() == []
        assert [process.is_running() for process in held] == [True]
    finally:
        for process in held:
            if process.is_running():
                process.kill()
    assert are_idle(slurm)


def test_a_daemon_that_was_killed_leaves_no_dead_mount(slurm: SlurmCluster, source: str) -> None:
    job = slurm.submit(f"{READ}; {HOLD}", ON_N1, comment=f"fusestripe:source={source}")
    said_by(slurm, job, DIGEST)
    for process in slurm.daemons():
        process.kill()
    let_go(slurm, job)
    assert slurm.await_end(job) == "COMPLETED"
    assert slurm.leavings() == []
    assert are_idle(slurm)


def test_a_prolog_that_is_killed_half_way_leaves_nothing(slurm: SlurmCluster) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        job = slurm.submit("true", ON_N1, comment=f"fusestripe:source=s3://b/x,endpoint={endpoint}")
        connection, _ = silent.accept()  # the daemon is up, and asks
        with connection:
            script = "/srv/code/mount/slurm/prolog.sh"
            (prolog,) = [process for process, command in slurm.processes() if command[1:2] == [script]]
            prolog.send_signal(signal.SIGKILL)
            eventually(lambda: "DRAIN" in slurm.state_of("n1"))
            eventually(lambda: slurm.leavings() == [])
            slurm.run("scancel", str(job))


def test_what_a_job_without_an_epilog_left_goes_with_the_next(slurm: SlurmCluster, source: str) -> None:
    slurm.program("epilog", "#!/bin/sh\nexit 0\n")
    job = slurm.submit(READ, ON_N1, comment=f"fusestripe:source={source}")
    assert slurm.await_end(job) == "COMPLETED"
    assert [mount.mountpoint for mount in slurm.mounts()] == [f"/srv/mounts-n1/{job}"]
    other = slurm.submit(f"{READ}; {HOLD}", ON_N1, user=ADA, comment=f"fusestripe:source={source}")
    said_by(slurm, other, DIGEST)
    assert [mount.mountpoint for mount in slurm.mounts()] == [f"/srv/mounts-n1/{other}"]
    slurm.restore_scripts()
    let_go(slurm, other)
    assert slurm.await_end(other) == "COMPLETED"


def pins(slurm: SlurmCluster) -> list[bool]:
    listed = slurm.run("fusestripe", "cache", "ls", "--json", f"--cache-dir=/srv/cache-n1/{ADA}", user=ADA)
    return [entry["pinned"] for entry in json.loads(listed.stdout)]


def test_what_was_pinned_for_a_job_is_unpinned_with_the_last_that_wants_it(
    slurm: SlurmCluster, source: str
) -> None:
    shutil.rmtree(slurm.directory / f"cache-n1/{ADA}", ignore_errors=True)
    comment = f"fusestripe:source={source},prefetch=step-1,pin,wait=1m"
    jobs = [slurm.submit(f"{READ}; {HOLD}", ON_N1, comment=comment) for _ in range(2)]
    for job in jobs:
        said_by(slurm, job, DIGEST)
    for job, left in zip(jobs, (True, False), strict=True):
        assert pins(slurm) == [True]
        let_go(slurm, job)
        assert slurm.await_end(job) == "COMPLETED"
        assert pins(slurm) == [left]


def test_a_slurm_that_tells_less_is_asked(slurm: SlurmCluster, source: str) -> None:
    """Before 22.05 a Prolog is not told comment and working directory."""
    less = "env -u SLURM_JOB_COMMENT -u SLURM_JOB_WORK_DIR -u SLURM_NODELIST"
    conf = "FUSESTRIPE_SLURM_CONF=/srv/etc/fusestripe.conf"
    slurm.program("prolog", f"#!/bin/sh\nexec {less} {conf} /srv/code/mount/slurm/prolog.sh\n")
    job = slurm.submit(READ, "--job-name=a Comment=b WorkDir=c", comment=f"a b fusestripe:source={source}")
    assert slurm.await_end(job) == "COMPLETED"
    assert slurm.output(job).split()[0] == DIGEST


def test_the_scripts_are_clean() -> None:
    scripts = sorted((CODE / "mount/slurm").glob("*.sh"))
    assert len(scripts) == 4
    done = subprocess.run(["shellcheck", "-x", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
