"""A stand-in for servers that speak KServe's v2 protocol, as Triton does, over HTTP and gRPC.

It knows nothing of edl's client but the messages of proto/kserve.proto, and reads and writes
tensors by itself, so that a mistake would have to be made twice. What it does follows the Open
Inference Protocol, Triton's extensions `binary_tensor_data` and `model_configuration`, and, for the
statuses of errors, Triton's servers: 400, 404, 500, 503, and gRPC's INVALID_ARGUMENT, NOT_FOUND,
INTERNAL, UNAVAILABLE. Triton's own client, tritonclient 2.73.0, has been run against it.
"""

from __future__ import annotations

import ssl
import threading
from concurrent import futures
from pathlib import Path
from typing import Self

import grpc

from .kserve_grpc import service_of
from .kserve_http import Server, handler_of
from .kserve_model import Fault, Model, Spec

__all__ = ["Fault", "Spec", "StandIn"]


class StandIn(Model):
    """A server with one model, of the arguments of `Model`, while it is entered."""

    def __enter__(self) -> Self:
        self._http = Server(("127.0.0.1", 0), handler_of(self))
        if self.certified:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certified)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self._threads = futures.ThreadPoolExecutor(8)
        self._grpc = grpc.server(self._threads, options=[("grpc.max_receive_message_length", -1)])
        self._grpc.add_generic_rpc_handlers((service_of(self),))
        if self.certified:
            certificate, key = (Path(each).read_bytes() for each in self.certified)
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            self._grpc_port = self._grpc.add_secure_port("127.0.0.1:0", credentials)
        else:
            self._grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.end()
        self._http.server_close()
        self._thread.join()
        self._grpc.stop(0).wait(10)
        self._threads.shutdown()

    def url(self, carrier: str, version: str = "", model: str = "") -> str:
        """Return the address of the model, as users write it."""
        port = self._http.server_address[1] if carrier == "http" else self._grpc_port
        end = f"/{version}" if version else ""
        scheme = f"{carrier}s" if self.certified else carrier
        return f"kserve+{scheme}://127.0.0.1:{port}/{model or self.model}{end}"

    def target(self, carrier: str) -> str:
        """Return HOST:PORT."""
        return self.url(carrier).split("/")[2]

    def end_connections(self) -> None:
        """Close what clients of HTTP have open, as a server does that tires of idle ones."""
        self._http.end()
