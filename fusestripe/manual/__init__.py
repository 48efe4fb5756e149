"""The pages of the manual, made of the commands and the settings themselves.

`python -m fusestripe.manual DIRECTORY` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fusestripe.manual.helper import helper_page
from fusestripe.manual.program import program_page

__all__ = ["PAGES"]

PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"fusestripe.1": program_page, "mount.fusestripe.8": helper_page}
)
"""File name -> what makes its text."""
