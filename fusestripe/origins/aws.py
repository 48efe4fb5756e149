"""Credentials, region and endpoint as the AWS tools find them, by way of botocore.

In botocore's order: environment, ~/.aws/credentials and ~/.aws/config (profiles, SSO, assumed roles, web
identity, credential_process), container role, instance role; refreshed where they expire.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import botocore.configprovider
import botocore.exceptions
import botocore.session

from fusestripe.errors import ConfigError, CredentialsRefused, OriginError, OriginUnavailable
from fusestripe.origins.base import OriginOptions

__all__ = ["AwsAccess", "Keys", "find_access"]

DEFAULT_REGION = "us-east-1"


class Keys(NamedTuple):
    """Credentials of this moment. Never printed."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return "Keys(...)"


class AwsAccess:
    """How one store is reached: ``region``, ``endpoint`` (a URL; None: AWS itself) and the credentials."""

    def __init__(
        self,
        region: str,
        endpoint: str | None,
        ca_bundle: str | None,
        credentials: Any,
        find: Callable[[], Any] = lambda: None,
    ) -> None:
        """``find`` looks anew for what ``credentials`` are."""
        self.region = region
        self.endpoint = endpoint
        self.ca_bundle = ca_bundle
        self._credentials = credentials
        self._find = find
        self._lock = threading.Lock()

    @property
    def anonymous(self) -> bool:
        """Whether requests go unsigned."""
        return self._credentials is None

    def keys(self) -> Keys | None:
        """Credentials that are good now, fetched anew where they are about to expire; None if anonymous.

        Blocking and thread-safe. Raises CredentialsRefused, OriginUnavailable.
        """
        if self._credentials is None:
            return None
        try:
            return Keys(*self._credentials.get_frozen_credentials()[:3])
        except botocore.exceptions.BotoCoreError as error:
            raise _refused(error) from error

    def renew(self, access_key: str, token: str | None) -> bool:
        """Whether there are other credentials than those, which a server does not accept any more.

        They are looked for wherever the first ones came from: a file may have been written anew since, and
        a role's may have been withdrawn before their time. Blocking and thread-safe.
        """
        with self._lock:  # one looks, and the others find what that found
            if self._differs(access_key, token):
                return True
            try:
                self._credentials = self._find() or self._credentials
            except botocore.exceptions.BotoCoreError:
                return False
            return self._differs(access_key, token)

    def _differs(self, access_key: str, token: str | None) -> bool:
        try:
            keys = self.keys()
        except OriginError:
            return False
        return keys is not None and (keys.access_key, keys.token or None) != (access_key, token or None)


def find_access(options: OriginOptions) -> AwsAccess:
    """What ``options`` say, and for the rest what the environment and ~/.aws say.

    Raises ConfigError (no such profile, a broken ~/.aws) and CredentialsRefused (none found).
    """
    try:
        session = botocore.session.Session(profile=options.profile)
        scoped = session.get_scoped_config()
        region = options.region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
        endpoint = options.endpoint or _configured_endpoint(session, scoped)
        ca_bundle = session.get_config_variable("ca_bundle")
        credentials = None if options.anonymous else session.get_credentials()
    except botocore.exceptions.ProfileNotFound as error:
        known = ", ".join(botocore.session.Session().available_profiles) or "none"
        raise ConfigError(
            f"no profile {error.kwargs.get('profile')!r} in ~/.aws", mend=f"known profiles: {known}"
        ) from error
    except (botocore.exceptions.ConfigParseError, botocore.exceptions.ConfigNotFound) as error:
        raise ConfigError(_one_line(error), mend="mend the file, or set AWS_CONFIG_FILE") from error
    except botocore.exceptions.BotoCoreError as error:
        raise _refused(error) from error
    if credentials is None and not options.anonymous:
        raise CredentialsRefused(
            "no AWS credentials found",
            mend="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, "
            "or set anonymous for a public bucket",
        )

    def find() -> Any:
        return botocore.session.Session(profile=options.profile).get_credentials()

    return AwsAccess(region or DEFAULT_REGION, endpoint, ca_bundle, credentials, find)


def _configured_endpoint(session: Any, scoped: dict[str, Any]) -> str | None:
    """AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or the profile's endpoint_url, in botocore's order."""
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    provider = botocore.configprovider.ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=scoped, client_name="s3", environ=os.environ
    )
    found: str | None = provider.provide()
    return found


def _refused(error: botocore.exceptions.BotoCoreError) -> CredentialsRefused | OriginUnavailable:
    if isinstance(error, botocore.exceptions.HTTPClientError):
        return OriginUnavailable(f"the source of the AWS credentials does not answer: {_one_line(error)}")
    if isinstance(error, botocore.exceptions.MissingDependencyException):
        return CredentialsRefused(
            "credentials of `aws login` need the package awscrt", mend="pip install 'fusestripe[aws]'"
        )
    return CredentialsRefused(
        f"the AWS credentials cannot be had: {_one_line(error)}", mend="see `aws sts get-caller-identity`"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
