"""What is installed, and how, on each distribution."""

from __future__ import annotations

import pytest

from fusestripe.packages import NAMES, install_command


@pytest.mark.parametrize(
    ("there", "what", "command"),
    [
        ({"apt-get"}, "fuse3", "apt install fuse3"),
        ({"apt-get"}, "java", "apt install default-jre-headless"),
        ({"apt-get"}, "libgssapi_krb5", "apt install libgssapi-krb5-2"),
        ({"dnf", "yum"}, "fuse3", "dnf install fuse3"),
        ({"yum"}, "libgssapi_krb5", "yum install krb5-libs"),
        ({"zypper"}, "libgssapi_krb5", "zypper install krb5"),
        ({"apk"}, "java", "apk add openjdk17-jre-headless"),
        ({"pacman"}, "fuse3", "pacman -S fuse3"),
        (set(), "fuse3", "install fuse3"),
    ],
)
def test_it_is_the_command_of_this_distribution(there: set[str], what: str, command: str) -> None:
    assert install_command(what, lambda name: name if name in there else None) == command


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(KeyError):
        install_command("fuse4", lambda name: name)
    assert "fuse3" in NAMES
