"""The nodes that share what they fetch."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from fusestripe.config import Settings
from fusestripe.doctor.finding import Finding
from fusestripe.engine import join_peers
from fusestripe.errors import FusestripeError

__all__ = ["peers"]


def peers(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Whether this node is one of the members, and which of the others answer."""
    quiet = logging.getLogger("fusestripe.peers")
    before = quiet.level
    quiet.setLevel(logging.CRITICAL)  # it is said below
    try:
        peering = join_peers(settings)
        assert peering is not None
        found = trio.run(peering.look)
    except FusestripeError as error:
        return Finding("peers", "fail", error.message, error.mend)
    except OSError as error:
        text = f"the members cannot be looked up: {error.strerror or error}"
        return Finding("peers", "fail", text, f"getent hosts {settings.peers.dns}")
    finally:
        quiet.setLevel(before)
    if not found.me and not found.members:
        return _nobody(settings, environ)
    if not found.me:
        names = ", ".join(member.name for member in found.members[:3])
        mend = f'say which one it is: name = "..." in [peers]; they are {names}'
        return Finding("peers", "warning", "this node is none of the members", mend)
    silent = [f"{member.name}: {member.why}" for member in found.members if not member.live]
    here = f"this node is {found.me}"
    if silent:
        strange = any(member.fault == "stranger" for member in found.members)
        mend = "mount there, and open its port to the other nodes"
        mend = "give all members the same token_file and stripe size" if strange else mend
        return Finding("peers", "warning", f"{here}; {len(silent)} do not answer: {'; '.join(silent)}", mend)
    return Finding("peers", "ok", f"{here}; all of {len(found.members)} others answer")


def _nobody(settings: Settings, environ: Mapping[str, str]) -> Finding:
    if settings.peers.slurm and not environ.get("SLURM_JOB_NODELIST"):
        text = "there are no members: SLURM_JOB_NODELIST is not set, so this is no job of Slurm's"
        return Finding("peers", "warning", text, "srun fusestripe doctor, and mount in a job")
    return Finding("peers", "warning", "there are no members", "name them in [peers]")
