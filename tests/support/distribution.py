"""The project as it is given away: built, and installed where nothing else of it is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ROOT", "Installed", "build", "install", "install_with_dependencies"]

ROOT = Path(__file__).parents[2]
SECONDS = 120


def build(source: Path, into: Path, *kinds: str) -> Path:
    """The one file that comes of building ``source``; ``kinds``: --wheel or --sdist."""
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(into), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = into.iterdir()
    return file


class Installed:
    """A virtual environment at ``prefix`` with the wheel in it."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.python = prefix / "bin" / "python"
        self.environment = {
            "PATH": f"{prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(prefix),
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """``command`` with the environment's programs first, and hardly a variable of the tests' own."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=self.prefix,
            stdin=subprocess.DEVNULL,
            env=self.environment | dict(environment or {}),
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done


def install(wheel: Path, prefix: Path) -> Installed:
    """The wheel alone; what it depends on is that of the tests."""
    venv.create(prefix, symlinks=True)
    installed = Installed(prefix)
    pip = [sys.executable, "-m", "pip", "--python", str(installed.python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=SECONDS)
    libraries = installed.run(
        str(installed.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).stdout.strip()
    Path(libraries, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return installed


def install_with_dependencies(wheel: Path, prefix: Path, *extras: str) -> Installed:
    """The wheel and all that pip brings for it and its ``extras``, in an empty environment."""
    venv.create(prefix, symlinks=True, with_pip=True)
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    command = [str(prefix / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", wanted]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, timeout=2 * SECONDS, env=environment)
    return Installed(prefix)
