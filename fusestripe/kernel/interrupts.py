"""Whether a reader that waits should be let go: FUSE_INTERRUPT says that a signal came, and not which."""

from __future__ import annotations

import signal

__all__ = ["ends_reader", "is_fatal"]

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


def ends_reader(thread: int) -> bool:
    """Whether a signal that ends it waits for ``thread``, or it is gone.

    A thread of another pid namespace has number 0 here: nothing can be known of it, and it is not ended.
    """
    if thread == 0:
        return False
    try:
        with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as file:
            return is_fatal(file.read())
    except OSError:
        return True


def is_fatal(status: str) -> bool:
    """The same from the text of /proc/pid/status (proc_pid_status(5)).

    SIGKILL is pending in every thread as soon as a signal without a handler ends their process.
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)

    def mask(name: str) -> int:
        return int(fields.get(name, "0").strip() or "0", 16)

    waiting = (mask("SigPnd") | mask("ShdPnd")) & ~(mask("SigBlk") | mask("SigIgn"))
    caught = mask("SigCgt")
    for number in range(1, 65):
        bit = 1 << (number - 1)
        if waiting & bit and (number in ENDING or not (caught & bit or number in HARMLESS)):
            return True
    return False
