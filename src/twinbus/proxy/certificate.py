"""The certificate of one run of a proxy, and how each SDK is led to it and trusts it.

An authority is made for each run, signs one certificate and is gone: its key is kept nowhere. The
certificate is for localhost and for the namespace, because some SDKs check the name of the
namespace although they connect to another address.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.extras import missing_package

if TYPE_CHECKING:
    from cryptography import x509

VALID: Final = timedelta(days=7)
"""Longer than a run; a file that is left over is soon worth nothing."""

CLOCK_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RunCertificate:
    context: ssl.SSLContext
    """What the proxy shows."""
    authority: Path
    """The file that clients trust."""

    def remove(self) -> None:
        self.authority.unlink(missing_ok=True)


def make_certificate(host: str) -> RunCertificate:
    """Make the certificate of a run in front of `host`; MissingPackageError without its extra."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise missing_package("`twinbus faults proxy`", error) from None
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _unsigned("Twinbus fault proxy, one run", authority_key.public_key())
    authority = _signed_by(authority, "Twinbus fault proxy, one run", authority_key.public_key())
    authority = _of_authority(authority, is_one=True)
    root = authority.sign(authority_key, hashes.SHA256())
    leaf = _unsigned("localhost", key.public_key())
    leaf = _signed_by(leaf, "Twinbus fault proxy, one run", authority_key.public_key())
    leaf = _of_authority(leaf, is_one=False).add_extension(_names(host), critical=False)
    chain = leaf.sign(authority_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, chain.public_bytes(pem) + secret)
    descriptor, name = tempfile.mkstemp(prefix="twinbus-proxy-", suffix=".pem")
    with os.fdopen(descriptor, "wb") as file:
        file.write(root.public_bytes(pem))
    return RunCertificate(context, Path(name))


def _load(context: ssl.SSLContext, chain_and_key: bytes) -> None:
    """Load what Python reads from files only; the file is readable by this user, and removed."""
    descriptor, name = tempfile.mkstemp(prefix="twinbus-proxy-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(chain_and_key)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()


def _unsigned(name: str, key: object) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)  # type: ignore[arg-type]  # of the library's many kinds
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key),  # type: ignore[arg-type]
            critical=False,
        )
    )


def _signed_by(
    certificate: x509.CertificateBuilder, name: str, key: object
) -> x509.CertificateBuilder:
    from cryptography import x509

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key)  # type: ignore[arg-type]
    return certificate.issuer_name(_name(name)).add_extension(issuer, critical=False)


def _of_authority(certificate: x509.CertificateBuilder, *, is_one: bool) -> x509.CertificateBuilder:
    from cryptography import x509

    usage = x509.KeyUsage(
        digital_signature=not is_one,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_one,
        crl_sign=is_one,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=is_one, path_length=0 if is_one else None)
    certificate = certificate.add_extension(constraints, critical=True)
    return certificate.add_extension(usage, critical=True)


def _names(host: str) -> x509.SubjectAlternativeName:
    from cryptography import x509

    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    names += [x509.IPAddress(ip_address(address)) for address in ("127.0.0.1", "::1")]
    try:
        ip_address(host)
    except ValueError:
        if host != "localhost":
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def trust_lines(port: int, authority: Path) -> list[str]:
    """How each SDK is led to the proxy, with the connection string that it has already."""
    return [
        (
            f'Python      custom_endpoint_address="sb://localhost:{port}",'
            f' transport_type=TransportType.Amqp, connection_verify="{authority}"'
        ),
        (
            f"Twinbus     the same keywords of Namespace.from_connection_string; or"
            f" --endpoint localhost:{port} --transport amqp, and SSL_CERT_FILE={authority}"
        ),
        (
            f'.NET        CustomEndpointAddress = new Uri("sb://localhost:{port}");'
            f" SSL_CERT_FILE={authority} (Linux)"
        ),
        (
            f'Java        .customEndpointAddress("https://localhost:{port}");'
            f" keytool -importcert -noprompt -alias twinbus -storepass changeit -file {authority}"
            " -keystore trust.p12; -Djavax.net.ssl.trustStore=trust.p12"
        ),
        (
            f'JavaScript  customEndpointAddress: "sb://localhost:{port}";'
            f" NODE_EXTRA_CA_CERTS={authority}"
        ),
        f'Go          CustomEndpoint: "localhost:{port}"; SSL_CERT_FILE={authority} (Linux)',
    ]
