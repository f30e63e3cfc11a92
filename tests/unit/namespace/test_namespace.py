"""Namespaces, sources of their credentials, and the threads that fetch tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import certifi
import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncClient

from twinbus import blocking, pair_namespaces
from twinbus.errors import CredentialError, NamespaceInUseError
from twinbus.namespace.access import NamespaceAccess, endpoint_of
from twinbus.namespace.credentials import THREADS_MAX, AwaitableCredential, open_credential
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import SAS_TOKEN, UNKNOWN_LIFE_S, WEB_TOKEN, read_token

EMULATOR = (
    "Endpoint=sb://localhost:5700;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0==;"
    "UseDevelopmentEmulator=true;"
)
AZURE = "Endpoint=sb://Contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=k=="

SECRET = AzureNamedKeyCredential("root", "k==")


def test_a_connection_string_of_azure_gives_host_label_and_no_emulator() -> None:
    namespace = Namespace.from_connection_string(AZURE)
    assert (namespace.host, namespace.port) == ("contoso.servicebus.windows.net", 5671)
    assert (namespace.label, namespace.emulator) == ("contoso", False)
    assert namespace.fully_qualified_namespace == "contoso.servicebus.windows.net"


def test_a_connection_string_of_the_emulator_keeps_its_port() -> None:
    namespace = Namespace.from_connection_string(EMULATOR)
    assert namespace.endpoint == "sb://localhost:5700"
    assert namespace.label == "localhost-5700"
    assert namespace.emulator
    assert namespace.parts is not None
    assert namespace.parts.key == "c2VjcmV0=="


def test_a_name_of_its_own_overrides_the_label() -> None:
    assert Namespace.from_connection_string(EMULATOR, "orders-1").label == "orders-1"
    assert Namespace("contoso.servicebus.windows.net", SECRET, name="other").label == "other"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "LOCALHOST"])
def test_every_name_of_this_machine_is_the_same_place(host: str) -> None:
    here = Namespace.from_connection_string(EMULATOR)
    assert Namespace.from_connection_string(EMULATOR.replace("localhost", host)).place == here.place


def test_a_side_is_a_connection_string_or_a_namespace() -> None:
    namespace = Namespace.of(EMULATOR)
    assert Namespace.of(namespace) is namespace
    with pytest.raises(TypeError, match="got int"):
        Namespace.of(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    ["contoso.servicebus.windows.net", "https://contoso.servicebus.windows.net/", "eyJ.s.x"],
)
def test_a_host_name_alone_is_answered_with_what_to_give_and_for_which_side(wrong: str) -> None:
    for sides, role in (((wrong, EMULATOR), "primary"), ((EMULATOR, wrong), "secondary")):
        for function in (pair_namespaces, blocking.pair_namespaces):
            with pytest.raises(ValueError, match=f"^the {role}: this is no connection") as caught:
                function(*sides)
            text = str(caught.value)
            assert "sb://HOST?credential=default" in text
            assert "Namespace(HOST, credential)" in text
            # It may be a token.
            assert wrong not in text


def test_every_error_of_a_side_says_which_side_it_is() -> None:
    with pytest.raises(TypeError, match=r"^the secondary: a side of a pair is .* got NoneType"):
        pair_namespaces(EMULATOR, None)  # type: ignore[arg-type]
    with pytest.raises(CredentialError, match=r"^the primary: the variable TWINBUS_NOT_SET"):
        pair_namespaces("sb://contoso?credential=env:TWINBUS_NOT_SET", EMULATOR)


def test_the_clients_of_the_sdk_get_the_users_keywords_and_our_bounds() -> None:
    with pytest.warns(UserWarning, match="retry_total"):
        namespace = Namespace.from_connection_string(EMULATOR, user_agent="mine", retry_total=9)
    config = namespace.bounded_client(5.0)._config
    assert (config.retry_total, config.try_timeout, config.user_agent) == (0, 7.0, "mine")
    assert namespace.client()._config.retry_total == 9
    # One set of certificates for all: loading them takes the loop 40 ms.
    assert config.ssl_context is namespace.client()._config.ssl_context is not None


def test_a_namespace_is_claimed_once_until_it_is_released() -> None:
    namespace = Namespace.from_connection_string(EMULATOR)
    namespace.claim()
    with pytest.raises(NamespaceInUseError, match="localhost:5700"):
        namespace.claim()
    namespace.release()
    namespace.claim()
    assert "c2VjcmV0" not in repr(namespace)


@pytest.mark.parametrize("credential", [object(), "a string", None])
def test_what_is_no_credential_is_refused_in_one_line(credential: object) -> None:
    with pytest.raises(TypeError, match="TokenCredential") as caught:
        Namespace("contoso.servicebus.windows.net", credential)
    assert "a string" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "written", ["contoso.x.net", "https://contoso.x.net:443/", "contoso.x.net:5671"]
)
def test_the_usual_ports_are_no_ports_of_its_own(written: str) -> None:
    namespace = Namespace(written, SECRET)
    assert namespace.place == ("contoso.x.net", 5671)
    assert namespace.administration == "contoso.x.net"
    assert namespace.client()._config.custom_endpoint_address is None


@pytest.mark.parametrize(
    "namespace",
    [
        Namespace("localhost:5700", SECRET),
        Namespace.from_connection_string(EMULATOR.replace("UseDevelopmentEmulator=true;", "")),
    ],
)
def test_a_port_of_its_own_reaches_the_clients_of_the_sdk(namespace: Namespace) -> None:
    for client in (namespace.client(), namespace.sync_client()):
        config = client._config
        assert config.connection_port == 5700
        assert config.custom_endpoint_hostname == "localhost"
        assert config.transport_type is TransportType.Amqp
    assert namespace.administration == "localhost:5700"


def test_the_users_own_endpoint_and_certificates_come_first() -> None:
    context = ssl.create_default_context()
    namespace = Namespace(
        "localhost:5700", SECRET, custom_endpoint_address="sb://front.x.net", ssl_context=context
    )
    config = namespace.client()._config
    assert config.custom_endpoint_hostname == "front.x.net"
    assert config.transport_type is TransportType.AmqpOverWebsocket
    assert config.ssl_context is namespace.certificates() is context
    named = Namespace("contoso.x.net", SECRET, connection_verify=certifi.where())
    assert named.certificates() is named.client()._config.ssl_context


def test_a_signature_is_known_as_one() -> None:
    signature = "SharedAccessSignature sr=sb&sig=x&se=1500&skn=root"
    text = f"Endpoint=sb://contoso/;SharedAccessSignature={signature}"
    assert Namespace.from_connection_string(text).signature == signature
    assert Namespace("contoso", AzureSasCredential(signature)).signature == signature
    assert Namespace("contoso", SECRET).signature is None


@pytest.mark.parametrize("option", ["retry_total", "retry_backoff_factor", "retry_mode"])
def test_retry_options_of_the_sdk_warn_that_a_pair_has_its_own(option: str) -> None:
    makes: list[Callable[..., Namespace]] = [
        lambda **options: Namespace.from_connection_string(AZURE, **options),
        lambda **options: Namespace("contoso.servicebus.windows.net", SECRET, **options),
    ]
    for make in makes:
        with pytest.warns(UserWarning, match=f"{option} of a Namespace applies to recei") as told:
            namespace = make(**{option: 5})
        assert told[0].filename == __file__
        # The SDK's receivers still get it.
        assert namespace.sdk_options == {option: 5}


HOST = "contoso.servicebus.windows.net"

SIGNATURE = "SharedAccessSignature sr=sb%3A%2F%2Fcontoso&sig=s3cret&se={}&skn=Root"

KEY = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


def web_token(expires_at_s: int) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_at_s}).encode())
    return f"eyJ0eXAi.{claims.decode().rstrip('=')}.c2ln"


@pytest.mark.parametrize(
    ("text", "kind", "expires_at_s"),
    [
        (SIGNATURE.format(1_500), SAS_TOKEN, 1_500.0),
        (web_token(1_600), WEB_TOKEN, 1_600.0),
        ("opaque", WEB_TOKEN, 1_000.0 + UNKNOWN_LIFE_S),
        ("not.base64!.token", WEB_TOKEN, 1_000.0 + UNKNOWN_LIFE_S),
        ('{"access_token": "opaque", "expires_on": "1700"}', WEB_TOKEN, 1_700.0),
        (json.dumps({"accessToken": web_token(1_800), "expiresOn": "today"}), WEB_TOKEN, 1_800.0),
    ],
)
def test_a_token_tells_its_kind_and_its_end(text: str, kind: str, expires_at_s: float) -> None:
    token = read_token(f"{text}\n", 1_000.0)
    assert (token.kind, token.expires_at_s) == (kind, expires_at_s)
    assert token.text in json.dumps(text) or token.text in text


@pytest.mark.parametrize("text", ["", "two words", "{", "{}", '{"access_token": ""}', "schlüssel"])
def test_what_is_no_token_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="it holds no token") as caught:
        read_token(text, 1_000.0)
    assert "words" not in str(caught.value)


def test_a_token_in_a_file_is_read_again_and_the_last_one_serves_while_it_is_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    path.write_text(web_token(int(time.time()) + 60))
    side = Namespace.of(f"sb://{HOST}?credential=file:{path}")
    endpoint = endpoint_of(side)

    def token() -> str:
        return asyncio.run(endpoint.token("orders", time.time())).header

    assert token() == f"Bearer {path.read_text()}"
    path.write_text(web_token(int(time.time()) + 900))
    assert token() == f"Bearer {path.read_text()}"
    before = token()
    path.unlink()
    assert token() == before
    path.write_text(web_token(1))
    assert token() == f"Bearer {web_token(1)}"
    path.unlink()
    with pytest.raises(CredentialError, match="gives no token: No such file"):
        token()
    assert "eyJ" not in repr(side) + repr(endpoint) + endpoint.tokens.who


def test_a_signature_in_a_file_is_put_as_a_signature_by_the_sdk_and_without_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "signature"
    path.write_text(SIGNATURE.format(int(time.time()) + 900))
    side = Namespace.of(f"sb://{HOST}?credential=file:{path}")
    token = asyncio.run(endpoint_of(side).token("orders", time.time()))
    assert (token.kind, token.header) == (SAS_TOKEN, path.read_text())
    assert side.signature == path.read_text()
    assert side.token_credential is not None
    assert side.token_credential.token_type == SAS_TOKEN.encode()
    fetched = asyncio.run(side.token_credential.get_token("scope"))
    assert fetched.token == path.read_text()
    assert "s3cret" not in repr(fetched) + repr(side)


def test_a_variable_holds_a_connection_string_or_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"sb://{HOST}?credential=env:CONTOSO"
    monkeypatch.setenv("CONTOSO", KEY)
    assert Namespace.of(text).connection_string == KEY
    monkeypatch.setenv("CONTOSO", "opaque")
    token = asyncio.run(endpoint_of(Namespace.of(text)).token("orders", 0.0))
    assert token.header == "Bearer opaque"
    monkeypatch.setenv("CONTOSO", KEY.replace("contoso", "fabrikam"))
    with pytest.raises(CredentialError, match=r"in env:CONTOSO is of fabrikam.*, not of contoso"):
        Namespace.of(text)
    monkeypatch.delenv("CONTOSO")
    with pytest.raises(CredentialError, match=r"the variable CONTOSO .* it is not set"):
        Namespace.of(text)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "No such file"), ("two words", "it holds no token"), ("x" * 70_000, "it has more")],
    ids=["missing", "text", "large"],
)
def test_a_file_without_a_token_is_named_in_one_line(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialError, match=f"the file {path} gives no token: {complaint}"):
        open_credential(f"file:{path}")


def test_without_azure_identity_the_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(CredentialError, match=r"pip install .*\[identity\]'"):
        open_credential("default")


def test_the_sources_of_azure_identity_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for source, kind in {
        "default": "DefaultAzureCredential",
        "managed-identity": "ManagedIdentityCredential",
        "managed-identity:1234": "ManagedIdentityCredential",
    }.items():
        assert type(open_credential(source)).__name__ == kind
    with pytest.raises(CredentialError, match="workload-identity cannot be opened") as caught:
        open_credential("workload-identity")
    assert "\n" not in str(caught.value)


def test_the_route_becomes_the_keywords_of_both_sdk_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROXY", "http://me:s3cret@proxy:3128")
    access = NamespaceAccess.parse(KEY, proxy="env:PROXY", endpoint="gateway:8443")
    side = Namespace.from_access(access)
    assert "s3cret" not in repr(side) + repr(endpoint_of(side))
    for kind, host in ((AsyncClient, "http://proxy"), (ServiceBusClient, "proxy")):
        client = side.client() if kind is AsyncClient else side.sync_client()
        options = client._config
        assert isinstance(client, kind)
        assert options.transport_type is TransportType.AmqpOverWebsocket
        assert options.custom_endpoint_hostname == "gateway"
        assert options.http_proxy == {
            "proxy_hostname": host, "proxy_port": 3128, "username": "me", "password": "s3cret",
        }  # fmt: skip
    monkeypatch.delenv("PROXY")
    with pytest.raises(CredentialError, match="the variable PROXY gives no proxy"):
        Namespace.from_access(access)


def test_another_endpoint_serves_amqp_and_administration() -> None:
    direct = endpoint_of(Namespace.from_access(NamespaceAccess.parse(KEY, endpoint="gate:5671")))
    assert (direct.amqp, direct.administration) == (("gate", 5671), ("gate", 443, True))
    assert direct.audience("orders") == f"sb://{HOST}/orders"
    assert endpoint_of(Namespace.of(KEY)).amqp == (HOST, 5671)


LIMIT_S = 20.0


class Waits:
    """A credential whose fetches last until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def get_token(self, *scopes: str, **_: Any) -> str:
        self.answers.wait(LIMIT_S)
        return f"a token for {scopes[0]}"


async def test_a_credential_that_hangs_does_not_starve_another() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hangs, answers = Waits(), Waits()
    answers.answers.set()
    primary, secondary = AwaitableCredential(hangs), AwaitableCredential(answers)
    waiting = [asyncio.create_task(primary.get_token("a")) for _ in range(THREADS_MAX + 2)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S / 2):
            assert await secondary.get_token("b") == "a token for b"
        # A fetch that waits for a thread may be cancelled.
        waiting.pop().cancel()
    finally:
        hangs.answers.set()
    assert await asyncio.gather(*waiting) == ["a token for a"] * (THREADS_MAX + 1)
    for thread in threading.enumerate():
        if thread.name.startswith("twinbus token"):
            thread.join(LIMIT_S)
            assert not thread.is_alive()
