"""A TCP proxy that can be a slow link, a half-open connection, or a peer that resets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Self


class Proxy:
    """A proxy that forwards 127.0.0.1:`port` to a target. `accepted`: connections so far."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.accepted = 0
        self.bytes_per_s: float | None = None
        self.deaf_after: int | None = None  # bytes; then it goes deaf, once
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._deaf: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def go_deaf(self) -> None:
        """Forward nothing more on the connections there are, and keep them: half open."""
        with self._lock:
            self._deaf.update(sock for pair in self._pairs for sock in pair)

    def reset(self) -> None:
        """End the connections there are with RST."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for sock in (sock for pair in pairs for sock in pair):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RD)  # wakes the thread that reads; then close resets
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self.accepted += 1
                self._pairs.append((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either end has gone
            while data := source.recv(1 << 16):
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                if self.deaf_after is not None:
                    self.deaf_after -= len(data)
                    if self.deaf_after < 0:
                        self.deaf_after = None
                        self.go_deaf()
                if source not in self._deaf:
                    sink.sendall(data)
            if source not in self._deaf:
                sink.shutdown(socket.SHUT_WR)
