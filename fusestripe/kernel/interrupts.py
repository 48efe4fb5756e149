"""Whether somebody who waits should be let go: FUSE_INTERRUPT says that a signal came, and not which."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable

__all__ = ["ends_caller", "ends_reader", "is_fatal", "sees_readers"]

# What a person or a scheduler ends a program with. Let go even where the program handles them: a Python
# program waits for its read before it raises KeyboardInterrupt.
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
# Their default is not to end the process (signal(7)).
HARMLESS = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
    }
)
# read, pread64, readv, preadv, preadv2 (asm/unistd_64.h, asm-generic/unistd.h).
_READS = {
    "x86_64": frozenset({"0", "17", "19", "295", "327"}),
    "aarch64": frozenset({"63", "67", "65", "69", "286"}),
}


def ends_reader(thread: int) -> bool:
    """Whether a signal that ends it waits for ``thread``, which reads a file, or looks at a page of it.

    One that is gone is not ended: what it asked for may be another's of its process (io_submit(2)).

    A thread of another pid namespace has number 0 here: nothing can be known of it, and it is not ended. The
    same holds for another user's where /proc is mounted with hidepid.
    """
    return _is_ended(thread, _is_reading)


def ends_caller(thread: int) -> bool:
    """The same where it waits for a name or a directory: any system call that asks for one returns EINTR."""
    return _is_ended(thread, lambda _: True)


def sees_readers() -> bool:
    """Whether /proc is that of this process's own pid namespace, which the kernel's numbers are of."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _is_ended(thread: int, may_return: Callable[[int], bool]) -> bool:
    if thread == 0:
        return False
    try:
        with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as file:
            return is_fatal(file.read(), may_return=may_return(thread))
    except OSError:
        return False


def _is_reading(thread: int) -> bool:
    """Whether it is in a system call that may return EINTR (proc_pid_syscall(5)), so far as we may know.

    A page fault may not: it would be SIGBUS.
    """
    try:
        with open(f"/proc/{thread}/syscall", encoding="ascii") as file:
            number = file.read().split()[0]
    except (OSError, IndexError):
        return False
    return number in _READS.get(platform.machine(), ())


def is_fatal(status: str, *, may_return: bool = True) -> bool:
    """The same from the text of /proc/pid/status (proc_pid_status(5)).

    ``may_return``: a signal that is handled may end the call that the thread is in.

    SIGKILL is pending in every thread as soon as a signal without a handler ends their process.
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)

    def mask(name: str) -> int:
        return int(fields.get(name, "0").strip() or "0", 16)

    waiting = (mask("SigPnd") | mask("ShdPnd")) & ~(mask("SigBlk") | mask("SigIgn"))
    caught = mask("SigCgt")
    for number in range(1, 65):
        bit = 1 << (number - 1)
        handled = bool(caught & bit)
        if waiting & bit and (may_return and number in ENDING if handled else number not in HARMLESS):
            return True
    return False
