"""A certificate authority for tests: what a broker shows, and what clients trust."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

import trustme


@cache
def authority() -> trustme.CA:
    """One for all tests of the process: making a key takes a while."""
    return trustme.CA()


@cache
def _server() -> trustme.LeafCert:
    # The hosts under .invalid are those that only a proxy of the tests can reach.
    hidden = ("contoso.invalid", "contoso-dr.invalid")
    return authority().issue_cert("localhost", "127.0.0.1", "::1", *hidden)


def server_context() -> ssl.SSLContext:
    """What a broker on localhost shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _server().configure_cert(context)
    return context


def client_context() -> ssl.SSLContext:
    """What a client has that trusts the authority, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return context


def write_server_files(directory: Path) -> tuple[Path, Path]:
    """The certificate chain and the key as the files that `twinbus serve` takes."""
    chain, key = directory / "chain.pem", directory / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in _server().cert_chain_pems))
    key.write_bytes(_server().private_key_pem.bytes())
    return chain, key


def write_authority(directory: Path) -> Path:
    """The authority's certificate, for clients that want a file (`connection_verify`)."""
    path = directory / "authority.pem"
    path.write_bytes(authority().cert_pem.bytes())
    return path
