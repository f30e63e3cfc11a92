"""A certificate whose files change is loaded again, without a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme

from tests.contract.certificates import authority, client_context, write_server_files
from twinbus.broker import port_access


def renew(chain: Path, key: Path) -> None:
    """Write another certificate of the same host."""
    made: trustme.LeafCert = authority().issue_cert("localhost", "127.0.0.1")
    chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())


async def serial_of(port: int) -> str:
    """The number of the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client_context(), server_hostname="localhost"
    )
    shown = writer.get_extra_info("peercert")
    writer.close()
    return str(shown["serialNumber"])


async def test_new_handshakes_get_the_new_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_access, "RELOAD_CHECK_S", 0.01)
    chain, key = write_server_files(tmp_path)
    context = port_access.server_context(chain, key)
    watching = asyncio.create_task(port_access.reload_on_change(context, chain, key))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    first = await serial_of(port)
    key.write_text("half a change")
    await asyncio.sleep(0.05)
    assert await serial_of(port) == first
    renew(chain, key)
    async with asyncio.timeout(60):
        while await serial_of(port) == first:  # noqa: ASYNC110  # a file changes, no event
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.wait({watching})
    server.close()
