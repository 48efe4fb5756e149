"""S3 and everything that speaks its protocol, by way of our own thin client (``s3_client``).

Versions are told apart by ETag, which a listing and a GET write in the same way.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from fusestripe.errors import ConfigError
from fusestripe.origins.aws import find_access
from fusestripe.origins.base import OriginOptions
from fusestripe.origins.keys import KeyOrigin, parse_key_url
from fusestripe.origins.s3_client import S3Client, locate

__all__ = ["open_s3"]


def open_s3(url: str, options: OriginOptions) -> KeyOrigin:
    """The origin for "s3://bucket/prefix". See ``registry.open_origin``."""
    name, prefix = parse_key_url(url, container="bucket")
    if "@" in name:
        raise ConfigError("an s3:// URL holds no credentials", mend="use the environment or a profile")
    access = find_access(options)
    bucket = locate(name, access)
    identity, where = f"s3://{name}", ""
    if access.endpoint is not None:
        parts = urlsplit(bucket.endpoint)
        where = f"?endpoint={parts.netloc}{parts.path}"
    return KeyOrigin(
        S3Client(bucket, access, options.timeout),
        url=identity + (f"/{prefix}" if prefix else "") + where,
        identity=identity + where,
        prefix=prefix,
    )
