"""Looks at what a mount needs: the kernel, FUSE, the cache disk, credentials and each origin."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator

from fusestripe.config import Settings
from fusestripe.config.machine import this_machine
from fusestripe.doctor import disk, machine, members, stores
from fusestripe.doctor.finding import Finding, Level
from fusestripe.kernel.rights import has_sys_admin

__all__ = ["Finding", "Level", "examine"]

HELPERS = "/sbin"
"""Where mount(8) looks for the helpers of types (mount(8), EXTERNAL HELPERS)."""


def examine(settings: Settings) -> Iterator[Finding]:
    """All findings, as they come; the routes' origins are asked for real, which may take seconds each."""
    release = platform.release()
    yield machine.kernel(release)
    yield machine.fuse_device(settings)
    yield from machine.libraries()
    yield machine.fusermount()
    yield machine.channel(release, settings)
    yield machine.passthrough(release, has_sys_admin(), settings)
    yield machine.keeper(release, settings)
    yield machine.read_ahead("/sys/class/bdi")
    yield machine.user_allow_other(settings)
    yield machine.mount_helper(HELPERS, sysconfig.get_path("data"))
    yield machine.memory(settings.stripes.memory, this_machine())
    yield from disk.cache_disk(settings.cache)
    for route in settings.routes:
        yield stores.origin(route, settings.mount.timeout)
    if not settings.routes:
        yield stores.extras()
        yield stores.aws_credentials()
    if settings.peers.are_on:
        yield members.peers(settings, os.environ)
