"""`fusestripe`, and `python -m fusestripe`."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """The console script. Ctrl-C while it is still being imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fusestripe.cli import main as command

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
