"""JuiceFS, which has a format of its own: files are written through its mount before they are read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import obstore
from obstore.store import S3Store

from fusestripe.units import MIB
from tests.bench.lab import BUCKET
from tests.bench.peers import Foreground
from tests.support.seaweed import ACCESS_KEY, SECRET_KEY, find_program

__all__ = ["JuiceFs"]


class JuiceFs(Foreground):
    """JuiceFS with its metadata in SQLite, its blocks in the bucket, and its cache."""

    name = "juicefs"

    def mount(self) -> None:
        """Return when the tree answers."""
        if not self._metadata.exists():
            self._format()
        super().mount()

    def provide(self, store: S3Store, key: str) -> Path:
        """Copy the object, and mount anew: what is read next comes from the store and fills the cache."""
        path = self.path / key
        with open(path, "wb") as file:
            for chunk in obstore.get(store, key).stream(min_chunk_size=4 * MIB):
                file.write(chunk)
        self.unmount()
        self.mount()
        return path

    def command(self) -> list[str]:
        """`juicefs mount`."""
        return [
            find_program("juicefs"),
            "mount",
            self._url,
            str(self.path),
            "--no-syslog",
            "--no-usage-report",
            "--no-bgjob",
            f"--cache-dir={self.cache}",
        ]

    def environment(self) -> dict[str, str]:
        """It keeps notes in the home directory."""
        return {"HOME": str(self.path.parent)}

    @property
    def _metadata(self) -> Path:
        return self.path.parent / "juicefs.db"

    @property
    def _url(self) -> str:
        return f"sqlite3://{self._metadata}"

    def _format(self) -> None:
        command = [
            find_program("juicefs"),
            "format",
            "--storage=s3",
            f"--bucket={self.endpoint}/{BUCKET}",
            f"--access-key={ACCESS_KEY}",
            f"--secret-key={SECRET_KEY}",
            self._url,
            "juicefs",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"juicefs format failed:\n{done.stderr[-1000:]}")
