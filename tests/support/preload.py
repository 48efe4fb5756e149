"""A library to start the daemon with: its clock is another, or it finds no host names when a test says so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Preload", "build_preload"]

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    const char *ahead = getenv("PRELOAD_CLOCK_AHEAD");
    if (result == 0 && clock == CLOCK_REALTIME && ahead) time->tv_sec += atol(ahead);
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

typedef const char *text;
typedef const struct addrinfo *wish;

int getaddrinfo(text node, text service, wish hints, struct addrinfo **found) {
    static int (*real)(text, text, wish, struct addrinfo **);
    const char *mark = getenv("PRELOAD_NO_NAMES");
    if (mark && access(mark, F_OK) == 0) {
        const char *waits = getenv("PRELOAD_NAMES_WAIT");
        if (waits) sleep(atoi(waits));
        return EAI_AGAIN;
    }
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, found);
}
"""


class Preload:
    """``environment`` starts a process with it; ``mark`` is the file that stands for "no names"."""

    def __init__(self, library: Path, mark: Path) -> None:
        self._library = library
        self._mark = mark

    def environment(self, *, clock_ahead: int = 0, names_wait: int = 0) -> Mapping[str, str]:
        """Seconds by which the clock is ahead, and for which a name is looked up in vain."""
        return {
            "LD_PRELOAD": str(self._library),
            "PRELOAD_CLOCK_AHEAD": str(clock_ahead),
            "PRELOAD_NO_NAMES": str(self._mark),
            "PRELOAD_NAMES_WAIT": str(names_wait),
        }

    @contextmanager
    def no_names(self) -> Iterator[None]:
        """For the time of the block no host name is found."""
        self._mark.touch()
        try:
            yield
        finally:
            self._mark.unlink()


def build_preload(directory: Path) -> Preload:
    """Compile it in ``directory``."""
    source, library = directory / "preload.c", directory / "preload.so"
    source.write_text(_SOURCE)
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return Preload(library, directory / "no-names")
