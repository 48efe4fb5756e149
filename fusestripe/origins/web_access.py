"""Credentials for web servers: a bearer token from the environment, or the user's netrc file."""

from __future__ import annotations

import base64
import netrc
import os
from collections.abc import Mapping

from fusestripe.errors import ConfigError
from fusestripe.origins.base import OriginOptions

__all__ = ["TOKEN", "authorization_for"]

TOKEN = "FUSESTRIPE_HTTP_TOKEN"


def authorization_for(host: str, options: OriginOptions) -> Mapping[str, str]:
    """The headers with the credentials for ``host``, which no other host may see; none if anonymous.

    The host's own entry in netrc ($NETRC, else ~/.netrc) comes before the token of the environment, which
    is for every web server that a route names. Raises ConfigError where the file cannot be read.
    """
    if options.anonymous:
        return {}
    known = _in_netrc(host)
    if known is not None:
        user, password = known
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    token = os.environ.get(TOKEN, "").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _in_netrc(host: str) -> tuple[str, str] | None:
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        found = netrc.netrc(path).hosts.get(host)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", mend="check NETRC") from error
    except netrc.NetrcParseError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}", mend="mend the file") from None
    return (found[0], found[2] or "") if found else None
