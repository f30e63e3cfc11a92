"""`twinbus page` refuses what would not be safe, before it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinbus.console.options import PageOptions
from twinbus.console.output import WrongUse
from twinbus.console.page.commands import run
from twinbus.page.live import PeerAddress


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"host": "0.0.0.0"}, "beyond loopback"),
        ({"host": "10.0.0.1", "operator_token_file": Path("token")}, "beyond loopback"),
        ({"tls_cert": Path("cert.pem")}, "TLS needs both"),
        ({"peer": ["ftp://x"]}, "a peer is a URL like"),
        ({"peer": ["http://10.0.0.1/?token=s3cret"]}, "needs https"),
        ({"peer": ["https://10.0.0.1:x/?token=s3cret"]}, "a peer is a URL like"),
        ({"peer": ["https://10.0.0.1/"]}, "a peer is a URL like"),
        ({"peer": ["http://localhost/?token=a"] * 51}, "at most 50 peers"),
        ({"ledger": "/nowhere"}, "--ledger must be a directory"),
        ({"operator_token_file": Path("/nowhere")}, "cannot be read"),
    ],
)
def test_an_unsafe_page_is_not_served(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WrongUse, match=complaint) as refused:
        run(PageOptions(**options))
    assert "s3cret" not in str(refused.value)


def test_tokens_must_be_long_and_two(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.write_text("guess\n")
    long.write_text("0123456789abcdefghij\n")
    with pytest.raises(WrongUse, match="20 characters or more"):
        run(PageOptions(operator_token_file=short))
    with pytest.raises(WrongUse, match="are the same"):
        run(PageOptions(operator_token_file=long, viewer_token_file=long))


def test_no_text_of_the_options_or_of_a_peer_has_a_secret() -> None:
    address = PeerAddress.parse("https://ops.example/?token=s3cret")
    options = PageOptions(secondary="Endpoint=sb://x/;SharedAccessKey=s3cret")
    assert "s3cret" not in f"{address} {address.url} {address.place} {options!r}"
