"""What the distribution calls a program or library that lacks, and how it is installed there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from types import MappingProxyType

__all__ = ["NAMES", "install_command"]

_MANAGERS: Mapping[str, str] = MappingProxyType(
    {
        "apt-get": "apt install",
        "dnf": "dnf install",
        "yum": "yum install",
        "zypper": "zypper install",
        "apk": "apk add",
        "pacman": "pacman -S",
    }
)
"""Program -> what a person types. The first that is there is the system's own."""

NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "fuse3": {},  # fusermount3, and libfuse by its dependencies
        "java": {
            "apt-get": "default-jre-headless",
            "dnf": "java-headless",
            "yum": "java-headless",
            "zypper": "java-headless",
            "apk": "openjdk17-jre-headless",
            "pacman": "jre-openjdk-headless",
        },
        "libgssapi_krb5": {
            "apt-get": "libgssapi-krb5-2",
            "dnf": "krb5-libs",
            "yum": "krb5-libs",
            "zypper": "krb5",
            "apk": "krb5-libs",
            "pacman": "krb5",
        },
    }
)
"""What lacks -> its package by the program that installs it; where none is said it is called the same."""


def install_command(what: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """How root installs ``what``, one of NAMES, on this machine: "apt install fuse3".

    Where none of the known programs is there: "install fuse3".
    """
    for program, words in _MANAGERS.items():
        if which(program) is not None:
            return f"{words} {NAMES[what].get(program, what)}"
    return f"install {what}"
