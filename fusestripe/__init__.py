"""fusestripe: object stores as one directory tree, read in parallel stripes and cached on NVMe."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusestripe.errors import CacheError, ConfigError, FusestripeError, MountError, OriginError

if TYPE_CHECKING:
    from fusestripe.api import Choice, PrefetchError, Report, mount, prefetch

__all__ = [
    "CacheError",
    "Choice",
    "ConfigError",
    "FusestripeError",
    "MountError",
    "OriginError",
    "PrefetchError",
    "Report",
    "__version__",
    "mount",
    "prefetch",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """What the API offers is imported when it is first asked for, so that the daemon stays small."""
    if name not in ("Choice", "PrefetchError", "Report", "mount", "prefetch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fusestripe.api"), name)
