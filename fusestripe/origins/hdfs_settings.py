"""The little of Hadoop's configuration files that we ask ourselves; hdfs-native reads the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from xml.etree import ElementTree

from fusestripe.errors import ConfigError

__all__ = ["configuration_directory", "default_store"]

_KEYS = ("fs.defaultFS", "fs.default.name")  # the second as Hadoop 1 called it


def configuration_directory(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where core-site.xml and hdfs-site.xml are: HADOOP_CONF_DIR, or below HADOOP_HOME."""
    if named := environ.get("HADOOP_CONF_DIR"):
        return named
    home = environ.get("HADOOP_HOME")
    return os.path.join(home, "etc", "hadoop") if home else None


def default_store(environ: Mapping[str, str] = os.environ) -> str:
    """The cluster that a URL without a host means: fs.defaultFS of core-site.xml. Raises ConfigError."""
    directory = configuration_directory(environ)
    if directory is None:
        raise ConfigError(
            "the URL names no cluster", mend="write hdfs://host:8020/path, or set HADOOP_CONF_DIR"
        )
    path = os.path.join(directory, "core-site.xml")
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        raise ConfigError(f"{path} cannot be read", mend="check HADOOP_CONF_DIR") from None
    found = {each.findtext("name"): each.findtext("value") for each in root.iter("property")}
    for key in _KEYS:
        if value := found.get(key):
            return value.strip().rstrip("/")
    raise ConfigError(f"{path} names no fs.defaultFS", mend="write the cluster into the URL")
