"""Settings: flags over environment over TOML over defaults, checked and frozen before anything starts."""

from fusestripe.config.job import FILE as JOB_FILE
from fusestripe.config.job import JobRequest, request_of
from fusestripe.config.loading import load, point_of
from fusestripe.config.settings import (
    SETTINGS,
    CacheSettings,
    MetadataSettings,
    MountSettings,
    PeerSettings,
    Route,
    Setting,
    Settings,
    StripeSettings,
    default_cache_dir,
)
from fusestripe.config.sources import parse_options
from fusestripe.config.stores import path_in, without_scheme

__all__ = [
    "JOB_FILE",
    "SETTINGS",
    "CacheSettings",
    "JobRequest",
    "MetadataSettings",
    "MountSettings",
    "PeerSettings",
    "Route",
    "Setting",
    "Settings",
    "StripeSettings",
    "default_cache_dir",
    "load",
    "parse_options",
    "path_in",
    "point_of",
    "request_of",
    "without_scheme",
]
