"""A real Slurm: munged, slurmctld and two slurmd, on a machine of their own (``tests.support.machine``)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fusestripe.kernel.mounting import Mount
from tests.support.machine import ADA, HOMES, Machine, python_program
from tests.support.seaweed import free_ports
from tests.support.server_process import ServerProcess
from tests.support.started import Started

__all__ = ["NODES", "ROOT", "SlurmCluster", "eventually"]

ROOT = Path("/srv")
"""What ``directory`` is to the jobs."""
NODES = ("n1", "n2")
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")

_CONF = """\
ClusterName=fusestripe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=/srv/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/srv/controller
SlurmdSpoolDir=/srv/spool/%n
SlurmctldPidFile=/srv/slurmctld.pid
SlurmdPidFile=/srv/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
PrologEpilogTimeout=60
PrologFlags=Alloc
Prolog=/srv/bin/prolog
Epilog=/srv/bin/epilog
TaskProlog=/srv/bin/task_prolog
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=8 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=n[1-2] Default=YES OverSubscribe=NO State=UP
"""


def eventually(condition: Callable[[], bool], timeout: float = 40.0) -> None:
    """Return once ``condition`` holds; fail where it does not within ``timeout`` seconds.

    Each look may be some processes: there is a pause after it.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


class SlurmCluster(Started):
    """Two nodes, n1 and n2, that run the Prolog, Epilog and TaskProlog of ``mount/slurm``.

    Each job writes where it is told to below ``directory``, which it knows as /srv.
    """

    def _start(self) -> None:
        self._machine = self._stack.enter_context(Machine(self.directory))
        self._furnish()
        socket_ = ["--socket=/srv/munge/socket", "--key-file=/srv/munge/key"]
        files = [f"--{name}-file=/srv/munge/{name}" for name in ("pid", "log", "seed")]
        munge = self._serve("munged", [_program("munged"), "--foreground", "--force", *socket_, *files])
        munge.await_ready((self.directory / "munge/socket").exists)
        controller = self._serve("slurmctld", [_program("slurmctld"), "-D"])
        controller.await_ready(lambda: self.run("scontrol", "ping", check=False).returncode == 0)
        self._daemons = {
            node: self._serve(f"slurmd-{node}", [_program("slurmd"), "-D", "-vv", "-N", node])
            for node in NODES
        }
        for node, daemon in self._daemons.items():
            daemon.await_ready(lambda node=node: self.state_of(node) == "IDLE")  # type: ignore[misc]
        # Nobody waits for daemons that have nothing to keep.
        self._stack.callback(self._machine.kill)

    def _serve(self, name: str, command: Sequence[str]) -> ServerProcess:
        environment = {"SLURM_CONF": "/srv/slurm.conf"}
        server = ServerProcess(name, self._machine.command(*command), self.directory / "log", environment)
        self._stack.callback(server.close)
        return server

    def _furnish(self) -> None:
        """Everything that is in /srv before the first daemon starts."""
        for name in ("munge", "controller", "spool", "etc", "bin", "jobs"):
            (self.directory / name).mkdir()
        (self.directory / "munge").chmod(0o755)
        key = self.directory / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        ports = dict(zip(("controller", *NODES), free_ports(3), strict=True))
        conf = _CONF.format(host=socket.gethostname().partition(".")[0], **ports)
        (self.directory / "slurm.conf").write_text(conf)
        (self.directory / "jobs").chmod(0o1777)
        self.program("fusestripe", python_program('-m fusestripe "$@"'))
        self.program("python", python_program('"$@"'))
        self.restore_scripts()
        self.configure()

    def restore_scripts(self) -> None:
        """Have Slurm run those of ``mount/slurm``."""
        for name in ("prolog", "epilog", "task_prolog"):
            script = f"/srv/code/mount/slurm/{name}.sh"
            self.program(name, f"#!/bin/sh\nFUSESTRIPE_SLURM_CONF=/srv/etc/fusestripe.conf exec {script}\n")

    def program(self, name: str, text: str) -> None:
        """Make the program /srv/bin/``name``; put in place at once, for it may be running."""
        fresh = self.directory / "bin" / f"{name}.new"
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(self.directory / "bin" / name)

    def configure(self, **settings: str) -> None:
        """What the administrator says in slurm.conf of fusestripe, beyond where things are."""
        places = {
            "FUSESTRIPE": "/srv/bin/fusestripe",
            "FUSESTRIPE_SWEEP_SECONDS": "0",
            # Both nodes are this machine.
            "FUSESTRIPE_MOUNTS": "/srv/mounts-$SLURMD_NODENAME",
            "FUSESTRIPE_STATE": "/srv/state-$SLURMD_NODENAME",
            "FUSESTRIPE_CACHES": "/srv/cache-$SLURMD_NODENAME",
        }
        text = "".join(f"{name}={value}\n" for name, value in (places | settings).items())
        (self.directory / "etc/fusestripe.conf").write_text(text)

    def restore(self) -> None:
        """Cancel all jobs, resume the nodes, and run the scripts as they are."""
        for home in HOMES.values():
            self.run("scancel", "--quiet", f"--user={Path(home).name}", check=False)
        eventually(lambda: not self.run("squeue", "--noheader").stdout, 40)
        eventually(lambda: all(self.state_of(node) in ("IDLE", "IDLE+DRAIN") for node in NODES), 40)
        for node in NODES:
            if self.state_of(node) == "IDLE+DRAIN":
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        eventually(lambda: all(self.state_of(node) == "IDLE" for node in NODES), 40)
        self.restore_scripts()
        self.configure()

    def leavings(self) -> list[str]:
        """What is there of jobs that are gone: mounts, processes, directories."""
        left = [mount.mountpoint for mount in self.mounts()]
        left += [f"process {process.pid}" for process in self.daemons()]
        for place in ("mounts", "state"):
            for node in NODES:
                left += [str(path) for path in self.directory.glob(f"{place}-{node}/[0-9]*")]
        return left

    def daemons(self) -> list[psutil.Process]:
        """The processes of fusestripe that run for jobs."""
        return [
            process
            for process, command in self.processes()
            if command[0].startswith("/srv/python/") and command[1] == "-m"
        ]

    def processes(self) -> list[tuple[psutil.Process, list[str]]]:
        """All of the cluster that have not ended, with their command lines."""
        mine = os.readlink(f"/proc/{self._machine.first}/ns/pid")
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == mine and process.cmdline():
                    found.append((process, process.cmdline()))
        return found

    def run(
        self, *command: str, user: int = 0, check: bool = True, directory: str = "/srv/jobs"
    ) -> subprocess.CompletedProcess[str]:
        """``command`` as a person at a terminal of the cluster would run it."""
        script = f'cd {shlex.quote(directory)} && exec "$@"'
        environment = {"PATH": "/srv/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": "/srv/slurm.conf"}
        done = subprocess.run(
            self._machine.command("/bin/sh", "-c", script, "sh", *command, user=user),
            capture_output=True,
            text=True,
            timeout=60,
            env=environment | ({"HOME": f"/srv/{HOMES[user]}"} if user else {"HOME": "/srv"}),
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done

    def submit(
        self, script: str, *options: str, user: int = ADA, comment: str = "", directory: str = "/srv/jobs"
    ) -> int:
        """The id of a job that runs ``script`` (sh); it says /srv/jobs/ID.out, arrays ID_TASK.out."""
        output = (
            "--output=/srv/jobs/%A_%a.out"
            if any("--array" in each for each in options)
            else ("--output=/srv/jobs/%j.out")
        )
        said = [f"--comment={comment}"] if comment else []
        wrapped = f"--wrap={script}"
        done = self.run(
            "sbatch", "--parsable", output, *said, *options, wrapped, user=user, directory=directory
        )
        return int(done.stdout.strip())

    def output(self, job: int | str) -> str:
        """What the job has said so far."""
        path = self.directory / f"jobs/{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job: int | str) -> Mapping[str, str]:
        """What `scontrol show job` says of it."""
        shown = self.run("scontrol", "--oneliner", "show", "job", str(job)).stdout
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    def await_end(self, job: int | str, timeout: float = 40) -> str:
        """The state that it ends in, once its Epilog is through too."""
        eventually(lambda: self.job(job)["JobState"] in _ENDED, timeout)
        return self.job(job)["JobState"]

    def state_of(self, node: str) -> str:
        """ "IDLE", "MIXED", "IDLE+DRAIN", ...; "" before the controller knows it."""
        shown = self.run("scontrol", "show", "node", node, check=False).stdout
        found = re.search(r"State=(\S+)", shown)
        return found[1] if found else ""

    def mounts(self) -> list[Mount]:
        """The fusestripe mounts of the cluster."""
        return list(self._machine.mounts().values())

    def log(self, node: str) -> str:
        """What slurmd has said."""
        return (self.directory / f"log/slurmd-{node}.log").read_text(errors="replace")


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(
            f"{name} is not installed: apt-get install slurmctld slurmd munge slurm-client"
        )
    return found
