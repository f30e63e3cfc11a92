"""Sources of credentials, and the threads that fetch their tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncClient

from twinbus.errors import CredentialError
from twinbus.namespace.access import NamespaceAccess, endpoint_of
from twinbus.namespace.credentials import THREADS_MAX, AwaitableCredential, open_credential
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import SAS_TOKEN, UNKNOWN_LIFE_S, WEB_TOKEN, read_token

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
