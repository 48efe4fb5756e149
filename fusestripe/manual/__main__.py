"""`python -m fusestripe.manual DIRECTORY`: write the pages there."""

from __future__ import annotations

import sys
from pathlib import Path

from fusestripe.manual import PAGES

if __name__ == "__main__":
    (directory,) = sys.argv[1:]
    for name, page in PAGES.items():
        Path(directory, name).write_text(page(), encoding="utf-8")
