"""Settings: flags over environment over TOML over defaults, checked and frozen before anything starts."""

from fusestripe.config.loading import load
from fusestripe.config.settings import (
    SETTINGS,
    CacheSettings,
    MetadataSettings,
    MountSettings,
    Route,
    Setting,
    Settings,
    StripeSettings,
    default_cache_dir,
)
from fusestripe.config.sources import parse_options

__all__ = [
    "SETTINGS",
    "CacheSettings",
    "MetadataSettings",
    "MountSettings",
    "Route",
    "Setting",
    "Settings",
    "StripeSettings",
    "default_cache_dir",
    "load",
    "parse_options",
]
