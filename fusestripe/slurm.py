"""What Slurm says of a job's nodes."""

from __future__ import annotations

from fusestripe.errors import ConfigError

__all__ = ["expand_nodes"]


def expand_nodes(listed: str, otherwise: str = "") -> list[str]:
    """The hosts in ``listed``, as in SLURM_JOB_NODELIST (sbatch(1)): "node[01-03,7]".

    ``otherwise`` is what helps without it. Raises ConfigError.
    """
    try:
        import hostlist  # the extra "peers" has it
    except ImportError:
        mend = "pip install 'fusestripe[peers]'" + (f", or {otherwise}" if otherwise else "")
        raise ConfigError("node lists of Slurm need python-hostlist", mend=mend) from None
    try:
        return list(hostlist.expand_hostlist(listed))
    except hostlist.BadHostlist as error:
        raise ConfigError(f"SLURM_JOB_NODELIST: {error}", mend=otherwise) from None
