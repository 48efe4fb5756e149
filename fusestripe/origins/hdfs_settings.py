"""What an HDFS URL names, with the little of Hadoop's configuration files that we ask ourselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit
from xml.etree import ElementTree

from fusestripe.errors import ConfigError
from fusestripe.origins.base import is_path

__all__ = ["SNAPSHOTS", "missing_fallback", "parse_url", "read_settings"]

_FILES = ("core-site.xml", "hdfs-site.xml")
_DEFAULT_STORE = ("fs.defaultFS", "fs.default.name")  # the second as Hadoop 1 called it
SNAPSHOTS = ".snapshot"
"""Where in a directory of HDFS its snapshots are, which no listing shows (HdfsConstants.DOT_SNAPSHOT_DIR)."""
_NOWHERE = "/.no-fallback-of-fusestripe"


def read_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the files in HADOOP_CONF_DIR, or below HADOOP_HOME, say. Raises ConfigError for what is no XML."""
    directory = environ.get("HADOOP_CONF_DIR")
    if not directory and environ.get("HADOOP_HOME"):
        directory = os.path.join(environ["HADOOP_HOME"], "etc", "hadoop")
    settings: dict[str, str] = {}
    for name in _FILES if directory else ():
        settings |= _read(os.path.join(directory or "", name))
    return settings


def parse_url(url: str, settings: Mapping[str, str]) -> tuple[str, str]:
    """The cluster ("hdfs://nameservice", "hdfs://host:port", "viewfs://table") and the path, "" for its root.

    The path is taken as it stands, since a name may hold "%", "?" and "#". Raises ConfigError.
    """
    scheme, _, rest = url.partition("://")
    where, _, path = rest.partition("/")
    if "@" in where:
        raise ConfigError(
            "an hdfs:// URL holds no user", mend="set HADOOP_USER_NAME, or get a Kerberos ticket"
        )
    try:
        usable = urlsplit(f"//{where}").port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{where!r} is no host and port", mend="write hdfs://host:8020/path")
    if not where:
        default = _default_store(settings)
        if not default.startswith(f"{scheme.lower()}://"):
            raise ConfigError(f"fs.defaultFS is {default}", mend="write the cluster into the URL")
        where = default.partition("://")[2]
    path = path.strip("/")
    if path and not is_path(path):
        raise ConfigError(f"{path!a} can be no path", mend='leave out "//", "." and ".."')
    return f"{scheme.lower()}://{where}", f"/{path}" if path else ""


def missing_fallback(store: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What hdfs-native wants of a mount table that has no linkFallback: one, here to a path that nobody has.

    https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/ViewFs.html
    """
    scheme, _, name = store.partition("://")
    table = f"fs.viewfs.mounttable.{name}"
    links = [value for key, value in settings.items() if key.startswith(f"{table}.link.")]
    if scheme != "viewfs" or not links or f"{table}.linkFallback" in settings:
        return {}
    cluster = "/".join(links[0].split("/")[:3])
    return {f"{table}.linkFallback": f"{cluster}{_NOWHERE}"}


def _default_store(settings: Mapping[str, str]) -> str:
    """The cluster that a URL without a host means. Raises ConfigError where the settings name none."""
    for key in _DEFAULT_STORE:
        if value := settings.get(key):
            return value.rstrip("/")
    raise ConfigError(
        "the URL names no cluster, and neither does fs.defaultFS of core-site.xml",
        mend="write hdfs://host:8020/path, or set HADOOP_CONF_DIR",
    )


def _read(path: str) -> dict[str, str]:
    try:
        root = ElementTree.parse(path).getroot()
    except FileNotFoundError:
        return {}
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", mend="check HADOOP_CONF_DIR") from None
    found = ((each.findtext("name"), each.findtext("value")) for each in root.iter("property"))
    return {name.strip(): value.strip() for name, value in found if name and value}
