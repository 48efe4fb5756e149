"""Azure's accounts and credentials from where Azure's tools look, and what is said where they fail."""

from __future__ import annotations

import base64

import pytest

from fusestripe.errors import BadAnswer, ConfigError, CredentialsRefused, NotFound, PermissionDenied
from fusestripe.origins.azure_access import find_access
from fusestripe.origins.azure_listing import parse_blobs
from fusestripe.origins.base import Origin, OriginOptions
from fusestripe.origins.registry import open_origin
from tests.origins.conformance import fetch, listing, pinned
from tests.support.azure_server import ACCOUNT, KEY, AzureServer
from tests.support.token_gate import TokenGate

WRONG = base64.b64encode(b"a wrong key").decode()


@pytest.fixture
def container(azure_server: AzureServer, azure_container: str) -> str:
    """A container with one blob in it."""
    azure_server.put(azure_container, "file", b"hello")
    return azure_container


def works(origin: Origin) -> bool:
    origin.check()
    return fetch(origin, pinned(origin, "file")) == b"hello"


class TestSources:
    @pytest.mark.parametrize("account", ["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"])
    @pytest.mark.parametrize(
        "key", ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"]
    )
    def test_an_account_and_its_key(
        self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str, account: str, key: str
    ) -> None:
        no_azure.setenv(account, ACCOUNT)
        no_azure.setenv(key, KEY)
        assert works(open_origin(f"az://{container}", OriginOptions(endpoint=azure_server.endpoint)))

    def test_an_endpoint_of_the_environment(
        self, azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str
    ) -> None:
        azure.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", azure_server.endpoint)
        assert works(open_origin(f"az://{container}"))

    def test_a_connection_string(
        self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str
    ) -> None:
        no_azure.setenv(
            "AZURE_STORAGE_CONNECTION_STRING",
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={azure_server.endpoint};",
        )
        assert works(open_origin(f"az://{container}"))

    @pytest.mark.parametrize("mark", ["", "?"])
    def test_a_shared_access_signature(
        self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str, mark: str
    ) -> None:
        no_azure.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        no_azure.setenv("AZURE_STORAGE_SAS_TOKEN", mark + azure_server.sas())
        assert works(open_origin(f"az://{container}", OriginOptions(endpoint=azure_server.endpoint)))

    def test_a_managed_identity(
        self,
        no_azure: pytest.MonkeyPatch,
        azure_server: AzureServer,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        with (
            TokenGate(tmp_path_factory.mktemp("gate") / "nginx", azure_server.endpoint) as gate,
            azure_server.container("for-identities", public=True) as container,
        ):
            azure_server.put(container, "file", b"hello")
            no_azure.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
            no_azure.setenv("IDENTITY_ENDPOINT", f"{gate.endpoint}/azure-token")
            no_azure.setenv("IDENTITY_HEADER", "secret")
            options = OriginOptions(endpoint=f"{gate.endpoint}/{ACCOUNT}")
            assert works(open_origin(f"az://{container}", options))

    def test_anonymous(self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer) -> None:
        options = OriginOptions(endpoint=azure_server.endpoint, anonymous=True)
        with azure_server.container("for-everybody", public=True) as container:
            azure_server.put(container, "file", b"hello")
            assert works(open_origin(f"az://{container}", options))

    def test_abfss_and_az_are_one_store(
        self, azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str
    ) -> None:
        options = OriginOptions(endpoint=azure_server.endpoint)
        hadoop = open_origin(f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/", options)
        assert works(hadoop)
        assert pinned(hadoop, "file") == pinned(open_origin(f"az://{container}", options), "file")

    def test_addresses_of_azure(self, azure: pytest.MonkeyPatch) -> None:
        assert find_access(OriginOptions()).endpoint == f"https://{ACCOUNT}.blob.core.windows.net"
        az = open_origin("az://data/p")
        assert az.url == f"az://data/p?account={ACCOUNT}"
        assert open_origin(f"abfss://data@{ACCOUNT}.dfs.core.windows.net/p").url == az.url

    def test_a_key_is_for_its_own_account_alone(self, azure: pytest.MonkeyPatch) -> None:
        """What another account's server is asked with must not be made from it."""
        own = find_access(OriginOptions(), account=ACCOUNT, host=f"{ACCOUNT}.blob.core.windows.net")
        assert "SharedKey" in own.authorize("GET", "/", {})[1]["Authorization"]
        other = find_access(OriginOptions(), account="other", host="other.blob.core.windows.net")
        azure.setenv("PATH", "")
        with pytest.raises(CredentialsRefused):
            other.authorize("GET", "/", {})


class TestRefusals:
    def test_a_wrong_key(self, azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str) -> None:
        options = OriginOptions(endpoint=azure_server.endpoint)
        version = pinned(open_origin(f"az://{container}", options), "file")
        azure.setenv("AZURE_STORAGE_KEY", WRONG)
        origin = open_origin(f"az://{container}", options)
        for call in (origin.check, lambda: fetch(origin, version)):
            with pytest.raises(PermissionDenied) as caught:  # Azurite says AuthorizationFailure to it
                call()
            assert caught.value.mend
            assert WRONG not in str(caught.value)

    def test_a_signature_without_the_right_to_list(
        self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str
    ) -> None:
        no_azure.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        no_azure.setenv("AZURE_STORAGE_SAS_TOKEN", azure_server.sas(listing=False))
        origin = open_origin(f"az://{container}", OriginOptions(endpoint=azure_server.endpoint))
        with pytest.raises(PermissionDenied, match="read and list") as caught:
            origin.check()
        assert "sig=" not in str(caught.value)

    def test_a_container_that_is_not_public(
        self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer, container: str
    ) -> None:
        options = OriginOptions(endpoint=azure_server.endpoint, anonymous=True)
        with pytest.raises((PermissionDenied, CredentialsRefused, NotFound)) as caught:
            open_origin(f"az://{container}", options).check()
        assert caught.value.mend

    def test_none(self, no_azure: pytest.MonkeyPatch, azure_server: AzureServer) -> None:
        with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT"):
            open_origin("az://container")
        no_azure.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        no_azure.setenv("PATH", "")
        origin = open_origin("az://container", OriginOptions(endpoint=azure_server.endpoint))
        with pytest.raises(CredentialsRefused, match="az login") as caught:
            origin.check()
        assert "\n" not in str(caught.value)

    def test_a_key_that_is_none(self, azure: pytest.MonkeyPatch) -> None:
        azure.setenv("AZURE_STORAGE_KEY", "no base64!")
        with pytest.raises(ConfigError, match="not base64") as caught:
            open_origin("az://container")
        assert "no base64!" not in str(caught.value)

    def test_no_such_container(self, azure: pytest.MonkeyPatch, azure_server: AzureServer) -> None:
        with pytest.raises(NotFound, match="no container 'nope'"):
            open_origin("az://nope", OriginOptions(endpoint=azure_server.endpoint)).check()

    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("az://", "no container"),
            ("az://user:secret@container", "container alone"),
            ("abfss://container/path", "no container and account"),
            ("abfss://container@account/path", "no container and account"),
            ("abfss://a:secret@account.dfs.core.windows.net/path", "no container and account"),
            ("az://container/a//b", "can be no path"),
        ],
    )
    def test_urls(self, azure: pytest.MonkeyPatch, url: str, word: str) -> None:
        with pytest.raises(ConfigError, match=word) as caught:
            open_origin(url)
        assert caught.value.mend
        assert "secret" not in str(caught.value)


def test_keys_that_cannot_be_paths_are_hidden(
    azure: pytest.MonkeyPatch, azure_server: AzureServer, azure_container: str
) -> None:
    for key in ("fine", "a//b", "dir/x", "m/", "L" * 256):
        azure_server.put(azure_container, key, b"x")
    origin = open_origin(f"az://{azure_container}", OriginOptions(endpoint=azure_server.endpoint))
    assert set(listing(origin, "")) == {"fine", "a", "dir", "m"}
    assert {path for page in origin.walk("") for path, _ in page} == {"fine", "a", "dir/x", "m"}


BLOB = (
    "<Blob><Name{encoded}>{name}</Name><Properties>"
    "<Last-Modified>Sun, 29 Nov 2026 15:31:01 GMT</Last-Modified><Etag>0x1</Etag>"
    "<Content-Length>{size}</Content-Length>{more}</Properties></Blob>"
)


def page(*blobs: str) -> bytes:
    return f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs><NextMarker/></EnumerationResults>".encode()


def test_a_hierarchical_namespace_and_encoded_names() -> None:
    """As Azure writes them, and Azurite does not."""
    folder = BLOB.format(encoded="", name="dir", size=0, more="<ResourceType>directory</ResourceType>")
    odd = BLOB.format(encoded=' Encoded="true"', name="a%EF%BF%BF%25", size=5, more="")
    found = parse_blobs(page(folder, odd))
    assert [one.key for one in found.objects] == ["dir/", "a\uffff%"]
    assert found.objects[1].etag == '"0x1"'
    assert found.next_token is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html></html>",
        page(BLOB.format(encoded="", name="a", size=-1, more="")),
        page(BLOB.format(encoded="", name="a", size="x", more="")),
        page(BLOB.format(encoded="", name="", size=1, more="")),
        page(BLOB.format(encoded="", name="a", size=1, more="").replace("0x1", "")),
        page(BLOB.format(encoded="", name="a", size=1, more="").replace("Nov", "Nov.")),
        page(BLOB.format(encoded=' Encoded="true"', name="%ff", size=1, more="")),
    ],
)
def test_what_is_no_listing_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer) as caught:
        parse_blobs(body)
    assert caught.value.mend
    assert "\n" not in str(caught.value)
