"""Credentials, region and endpoint from everywhere that the AWS tools look; what is said if they fail."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusestripe.errors import ConfigError, CredentialsRefused, FusestripeError, OriginError, OriginUnavailable
from fusestripe.origins.aws import find_access
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from fusestripe.origins.s3_client import locate
from tests.origins.conformance import fetch, pinned
from tests.support.credential_server import credential_server
from tests.support.seaweed import SeaweedServer

WRONG = "WRONGSECRETWRONGSECRET"


@pytest.fixture
def bucket(s3_server: SeaweedServer, s3_bucket: str) -> str:
    """A bucket with a plain key in it, and an odd one."""
    s3_server.put(s3_bucket, "plain", b"hello")
    s3_server.put(s3_bucket, "new\nline", b"hello")
    return s3_bucket


def works(origin: Origin) -> bool:
    """Listing and the data."""
    origin.check()
    return all(fetch(origin, pinned(origin, name)) == b"hello" for name in ("plain", "new\nline"))


class TestSources:
    def test_environment(self, aws: pytest.MonkeyPatch, bucket: str) -> None:
        assert works(open_origin(f"s3://{bucket}"))

    def test_profile_with_an_endpoint_of_its_own(
        self, no_aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str, tmp_path: Path
    ) -> None:
        home = tmp_path / "home" / ".aws"
        home.mkdir(parents=True)
        (home / "credentials").write_text(
            f"[default]\naws_access_key_id = {WRONG}\naws_secret_access_key = {WRONG}\n"
            f"[lab]\naws_access_key_id = {s3_server.access_key}\n"
            f"aws_secret_access_key = {s3_server.secret_key}\n"
        )
        (home / "config").write_text(
            f"[profile lab]\nregion = eu-test-1\nendpoint_url = {s3_server.endpoint}\n"
        )
        assert works(open_origin(f"s3://{bucket}", OriginOptions(profile="lab")))
        assert find_access(OriginOptions(profile="lab")).region == "eu-test-1"
        no_aws.setenv("AWS_PROFILE", "lab")
        assert works(open_origin(f"s3://{bucket}"))
        no_aws.delenv("AWS_PROFILE")
        with pytest.raises(CredentialsRefused):
            open_origin(f"s3://{bucket}", OriginOptions(endpoint=s3_server.endpoint)).check()

    def test_credential_process(
        self, no_aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str, tmp_path: Path
    ) -> None:
        answer = tmp_path / "answer.json"
        answer.write_text(
            f'{{"Version": 1, "AccessKeyId": "{s3_server.access_key}",'
            f' "SecretAccessKey": "{s3_server.secret_key}"}}'
        )
        config = tmp_path / "config"
        config.write_text(f"[default]\ncredential_process = cat {answer}\n")
        no_aws.setenv("AWS_CONFIG_FILE", str(config))
        assert works(open_origin(f"s3://{bucket}", OriginOptions(endpoint=s3_server.endpoint)))

    def test_container_role(self, no_aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str) -> None:
        with credential_server(s3_server.access_key, s3_server.secret_key) as source:
            no_aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", source.url + "/role")
            assert works(open_origin(f"s3://{bucket}", OriginOptions(endpoint=s3_server.endpoint)))
            assert source.handed_out == 1

    def test_instance_role(self, no_aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str) -> None:
        no_aws.delenv("AWS_EC2_METADATA_DISABLED")
        with credential_server(s3_server.access_key, s3_server.secret_key) as source:
            no_aws.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", source.url)
            assert works(open_origin(f"s3://{bucket}", OriginOptions(endpoint=s3_server.endpoint)))
            assert source.handed_out == 1

    def test_a_role_is_asked_again_before_its_credentials_expire(
        self, no_aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str
    ) -> None:
        with credential_server(s3_server.access_key, s3_server.secret_key, lifetime=60) as source:
            no_aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", source.url)
            origin = open_origin(f"s3://{bucket}", OriginOptions(endpoint=s3_server.endpoint))
            assert works(origin)
            before = source.handed_out
            assert works(origin)
            assert source.handed_out > before
            version = pinned(origin, "plain")
            source.access_key = WRONG  # the role is taken away
            with pytest.raises(CredentialsRefused):
                origin.check()
            with pytest.raises(CredentialsRefused):
                fetch(origin, version)

    def test_an_endpoint_in_the_settings_comes_before_the_environment(
        self, aws: pytest.MonkeyPatch, s3_server: SeaweedServer, bucket: str
    ) -> None:
        aws.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        aws.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        assert works(open_origin(f"s3://{bucket}", OriginOptions(endpoint=s3_server.endpoint)))
        aws.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
        assert works(open_origin(f"s3://{bucket}"))

    def test_region(self, no_aws: pytest.MonkeyPatch) -> None:
        anonymous = OriginOptions(anonymous=True)
        assert find_access(anonymous).region == "us-east-1"
        no_aws.setenv("AWS_DEFAULT_REGION", "eu-west-2")
        assert find_access(anonymous).region == "eu-west-2"
        no_aws.setenv("AWS_REGION", "eu-west-1")
        assert find_access(anonymous).region == "eu-west-1"
        assert find_access(OriginOptions(anonymous=True, region="eu-west-3")).region == "eu-west-3"

    def test_addresses_of_aws(self, no_aws: pytest.MonkeyPatch) -> None:
        def address(bucket: str, region: str) -> str:
            options = OriginOptions(anonymous=True, region=region)
            assert open_origin(f"s3://{bucket}/p", options).url == f"s3://{bucket}/p"
            return locate(bucket, find_access(options)).url

        assert address("models", "eu-west-1") == "https://models.s3.eu-west-1.amazonaws.com"
        assert address("my.models", "eu-west-1") == "https://s3.eu-west-1.amazonaws.com/my.models"
        assert address("models", "cn-north-1") == "https://models.s3.cn-north-1.amazonaws.com.cn"


class TestRefusals:
    @pytest.mark.parametrize(
        ("variable", "word"),
        [("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"), ("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY")],
    )
    def test_wrong_keys(self, aws: pytest.MonkeyPatch, bucket: str, variable: str, word: str) -> None:
        good = open_origin(f"s3://{bucket}")
        versions = [pinned(good, name) for name in ("plain", "new\nline")]
        aws.setenv(variable, WRONG)
        origin = open_origin(f"s3://{bucket}")
        with pytest.raises(CredentialsRefused, match=word) as caught:
            origin.check()
        said = [str(caught.value)]
        for version in versions:
            with pytest.raises(CredentialsRefused) as refused:
                fetch(origin, version)
            said.append(str(refused.value))
        for text in said:
            assert WRONG not in text
            assert "Signature=" not in text
            assert "\n" not in text

    def test_none(self, no_aws: pytest.MonkeyPatch) -> None:
        with pytest.raises(CredentialsRefused, match="no AWS credentials found"):
            open_origin("s3://bucket")

    def test_half(self, no_aws: pytest.MonkeyPatch) -> None:
        no_aws.setenv("AWS_ACCESS_KEY_ID", "x")
        with pytest.raises(CredentialsRefused) as caught:
            open_origin("s3://bucket")
        assert caught.value.mend

    def test_no_such_profile(self, aws: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match="no profile 'nope'"):
            open_origin("s3://bucket", OriginOptions(profile="nope"))
        aws.setenv("AWS_PROFILE", "gone")
        with pytest.raises(ConfigError, match="no profile 'gone'"):
            open_origin("s3://bucket")

    def test_a_broken_config_file(self, no_aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
        config = tmp_path / "config"
        config.write_text("what is this\n")
        no_aws.setenv("AWS_CONFIG_FILE", str(config))
        with pytest.raises(ConfigError) as caught:
            open_origin("s3://bucket")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_a_ca_bundle_that_is_none(
        self, aws: pytest.MonkeyPatch, tmp_path: Path, content: str | None
    ) -> None:
        bundle = tmp_path / "bundle.pem"
        if content is not None:
            bundle.write_text(content)
        aws.setenv("AWS_CA_BUNDLE", str(bundle))
        with pytest.raises(ConfigError, match="AWS_CA_BUNDLE"):
            open_origin("s3://bucket")

    def test_a_source_of_credentials_that_is_down(self, no_aws: pytest.MonkeyPatch) -> None:
        no_aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/role")
        with pytest.raises(OriginError) as caught:
            open_origin("s3://bucket")
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("aws")
class TestEndpoints:
    def test_one_that_refuses(self) -> None:
        origin = open_origin("s3://bucket", OriginOptions(endpoint="http://127.0.0.1:1"))
        with pytest.raises(OriginUnavailable, match="connection refused"):
            origin.check()

    @pytest.fixture
    def silent(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"

    def test_one_that_does_not_answer(self, silent: str) -> None:
        start = time.monotonic()
        with pytest.raises(OriginUnavailable, match="no answer in time"):
            open_origin("s3://bucket", OriginOptions(endpoint=silent)).check()
        assert time.monotonic() - start < 10

    def test_a_name_that_does_not_exist(self) -> None:
        with pytest.raises(OriginUnavailable, match="no such host"):
            open_origin("s3://bucket", OriginOptions(endpoint="http://nowhere.invalid")).check()

    def test_https_where_http_is_spoken(self, s3_server: SeaweedServer) -> None:
        endpoint = s3_server.endpoint.replace("http://", "https://")
        with pytest.raises(OriginUnavailable, match="http:// for https://"):
            open_origin("s3://bucket", OriginOptions(endpoint=endpoint)).check()

    @pytest.mark.parametrize(
        "endpoint",
        [
            "127.0.0.1:8333",
            "ftp://host",
            "http://",
            "http://host:port",
            f"http://user:{WRONG}@host",
            "http://host?x=y",
        ],
    )
    def test_one_that_cannot_be(self, endpoint: str) -> None:
        with pytest.raises(ConfigError) as caught:
            open_origin("s3://bucket", OriginOptions(endpoint=endpoint))
        assert caught.value.mend
        assert WRONG not in str(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("s3x://bucket", "did you mean s3://"),
            ("gopher://bucket", "known are "),
            ("bucket/prefix", "not an origin URL"),
            ("", "not an origin URL"),
            ("s3://", "no bucket"),
            ("s3:///prefix", "no bucket"),
            (f"s3://key:{WRONG}@bucket/x", "no credentials"),
            (f"s4://key:{WRONG}@bucket/x", "unknown scheme"),
            (f"key:{WRONG}@bucket", "not an origin URL"),
            ("s3://bucket/a//b", "can be no path"),
            ("s3://bucket/../b", "can be no path"),
        ],
    )
    def test_bad_ones(self, url: str, word: str) -> None:
        with pytest.raises(ConfigError) as caught:
            open_origin(url)
        assert word in str(caught.value)
        assert caught.value.mend
        assert WRONG not in str(caught.value)

    def test_errors_are_our_own(self) -> None:
        with pytest.raises(FusestripeError):
            open_origin("s3://bucket/\udcff")
