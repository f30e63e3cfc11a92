"""The endpoint of a managed identity, as App Service has it; its tokens expire within seconds.

azure-identity finds it by IDENTITY_ENDPOINT and IDENTITY_HEADER. Each token that it gives out is
written into the file of tokens that a broker accepts, with its expiry.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

RESOURCE = "https://servicebus.azure.net"
SECRET = "header-s3cret"


class IdentityEndpoint:
    """Runs on a thread of its own."""

    def __init__(self, token_file: Path, *, life_s: int) -> None:
        self.life_s = life_s
        self.issued: list[tuple[str, int]] = []
        """Each token with its expiry, in unix seconds."""
        self.refused = 0
        self._file = token_file
        self._lock = threading.Lock()
        self._write()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = endpoint.answer(self.path, self.headers.get("X-IDENTITY-HEADER"))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: pytest shows what a test prints."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """What App Service puts into the environment of a program."""
        port = self._server.server_address[1]
        return {
            "IDENTITY_ENDPOINT": f"http://127.0.0.1:{port}/msi/token",
            "IDENTITY_HEADER": SECRET,
        }

    def answer(self, target: str, header: str | None) -> tuple[int, dict[str, str]]:
        """Return status and body for a request."""
        asked = parse_qs(urlsplit(target).query)
        if header != SECRET or asked.get("resource", [""])[0].rstrip("/") != RESOURCE:
            self.refused += 1
            return 400, {"message": "no such identity"}
        with self._lock:
            token, expires = f"eyJ0.{uuid.uuid4().hex}.s3cret", int(time.time()) + self.life_s
            self.issued.append((token, expires))
            self._write()
        return 200, {
            "access_token": token,
            "expires_on": str(expires),
            "resource": RESOURCE,
            "token_type": "Bearer",
        }

    def _write(self) -> None:
        """Replace the file at once; the broker reads it again."""
        issued = enumerate(self.issued)
        # Expired ones too: the broker shall know that they have expired.
        lines = [f"app-{n} {token} Manage {expires}" for n, (token, expires) in issued]
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(["# tokens of the identity endpoint", *lines, ""]))
        new.replace(self._file)
