"""Namespaces: what a side of a pair is made from, and what it refuses in one line."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import certifi
import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType

from twinbus import blocking, pair_namespaces
from twinbus.errors import CredentialError, NamespaceInUseError
from twinbus.namespace.namespace import Namespace

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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("SharedAccessKeyName=a;SharedAccessKey=b", "no Endpoint"),
        ("Endpoint=sb://contoso;SharedAccessKeyName=a", "neither SharedAccessKeyName"),
        ("Endpoint=sb://contoso;justasecret", "one part has no '='"),
        ("Endpoint=sb://contoso:99999;SharedAccessKeyName=a;SharedAccessKey=b", "HOST:PORT"),
    ],
)
def test_a_broken_connection_string_is_one_line_without_its_secrets(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Namespace.from_connection_string(text)
    assert "justasecret" not in str(caught.value)
    assert "\n" not in str(caught.value)


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
