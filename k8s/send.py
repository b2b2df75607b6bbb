"""`python -m edl.k8s.send PATH DIGEST`: give out one file or folder of a job, once, in its pod.

It serves HTTPS with the job's own certificate on the port that the network policy leaves open, to
whoever knows the secret of which DIGEST is the SHA-256 (k8s/copying.py), and ends.
"""

from __future__ import annotations

import hashlib
import hmac
import http.server
import os
import ssl
import sys
from pathlib import Path

from ..common import rpc
from ..common.identity import job_identity
from ..common.listen import header_of, own_host
from ..common.process import end_at_sigterm, end_with
from ..jobs import transfer
from .copying import FROM
from .names import FILES_PORT
from .pods import JOB_DIR

_IDLE_S = 120.0  # nobody asks for so long: it ends
_SLOW_S = 60.0  # of a reader
_ASKING_S = 10.0  # of a handshake and a request: meanwhile nobody else is answered


class Server(http.server.HTTPServer):
    """One answer to whoever knows the secret; `answered` once it was given."""

    def __init__(
        self, address: tuple[str, int], path: str, digest: str, also: list[Path] | None
    ) -> None:
        super().__init__(address, Handler)
        self.path, self.digest, self.also = path, digest, also
        self.answered = False
        self.silent = False
        self.timeout = _IDLE_S

    def handle_timeout(self) -> None:
        self.silent = True

    def handle_error(self, _request: object, _client_address: object) -> None:
        """Tell of a connection that broke, in one line: the next one may do better."""
        print(f"a connection broke: {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    """An answer to one request."""

    server: Server
    timeout = _SLOW_S

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = header_of(self.connection, _ASKING_S)

    def do_GET(self) -> None:
        secret = self.path.strip("/").encode()
        if not hmac.compare_digest(hashlib.sha256(secret).hexdigest(), self.server.digest):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        transfer.send(Path(JOB_DIR), self.server.path, self.wfile, also=self.server.also)
        self.server.answered = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the path is the secret."""


def main(arguments: list[str]) -> int:
    """Serve until the answer was given; return 0, or 1 where nobody has asked."""
    end_at_sigterm()
    path, digest = arguments
    context = job_identity(rpc.job_token()).server_context
    context.verify_mode = (
        ssl.CERT_NONE
    )  # the API server has none of the job's; who asks has a secret
    said = os.environ.get(FROM)  # without one it is of a controller that gives out any
    also = None if said is None else [Path(each) for each in said.split(os.pathsep)]
    with Server((own_host(), FILES_PORT), path, digest, also) as server:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        while not (server.answered or server.silent):
            server.handle_request()
        return 0 if server.answered else 1


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
