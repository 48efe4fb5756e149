"""Ctrl-C while an origin is silent: the command ends at once, with one line and 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from fusestripe.units import MIB
from tests.support.mounted_store import MountedStore, content
from tests.support.proxy import Fault

# Of a command, from the signal to its end, on a busy machine; an origin's silence lasts for 300.
AT_ONCE = 10.0
# What keeps SIGINT from a shell's background, and so from the tests there, is undone in the child.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from fusestripe.cli import main; main()"
)


def interrupted(arguments: Sequence[str], environment: Mapping[str, str], ready: Callable[[], object]) -> str:
    """What `fusestripe ARGUMENTS` says on stderr when it is interrupted once ``ready`` has returned."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            ready()
            assert process.poll() is None
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=AT_ONCE)
        finally:
            process.kill()
    assert time.monotonic() - began < AT_ONCE
    assert process.returncode == 130
    return said


@pytest.mark.parametrize("silent", [".", "^GET"], ids=["from the start", "with the bytes"])
@pytest.mark.parametrize("command", ["prefetch", "bench", "doctor"])
def test_a_url(store: MountedStore, command: str, silent: str) -> None:
    store.put("d/file", content(9 * MIB))
    url = f"s3://{store.bucket}/d/file"
    arguments = [command, url]
    if command == "prefetch":
        arguments += ["--cache-dir", str(store.directory / "cache")]
    if command == "doctor":
        silent = "."
        config = store.directory / "config.toml"
        config.write_text(f'[[route]]\nsource = "{url}"\n')
        arguments = ["doctor", "--config", str(config), "--cache-dir", str(store.directory / "cache")]
    store.proxy.set_faults([Fault("hold", match=silent, times=0)])
    try:
        said = interrupted(arguments, store.proxy.environment, store.proxy.wait_held)
    finally:
        store.proxy.release()
    assert said == "fusestripe: interrupted\n"


@pytest.mark.parametrize("silent", [".", "^GET"], ids=["from the start", "with the bytes"])
@pytest.mark.parametrize("way", ["straight", "by a link"])
def test_a_path_in_a_mount(store: MountedStore, way: str, silent: str) -> None:
    store.put("d/file", content(4 * MIB))
    with store.mount(ttl=0, negative_ttl=0) as mount:
        (store.directory / "link").symlink_to(mount.path)
        path = mount.path if way == "straight" else store.directory / "link"
        store.proxy.set_faults([Fault("hold", match=silent, times=0)])
        try:
            said = interrupted(["prefetch", f"{path}/d/file"], {}, store.proxy.wait_held)
        finally:
            store.proxy.set_faults([])
            store.proxy.release()
    assert said == "fusestripe: interrupted\n"


def test_while_it_is_still_being_imported() -> None:
    """Without a word, as the shell has it."""
    slow = (
        "import signal, sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click': print('imports', flush=True); time.sleep(60)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from fusestripe.__main__ import main\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", slow, "status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "imports\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=AT_ONCE)
    assert (process.returncode, said) == (-signal.SIGINT, "")
