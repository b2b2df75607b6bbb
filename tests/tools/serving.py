"""`edl serve` as a process of a test."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import Any, Self

FAR_S = 120.0


class Process:
    """A server of this machine, until the end of the block."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = [str(each) for each in arguments]
        self.said: list[str] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "edl", "serve", *self._arguments]
        self.child = subprocess.Popen(
            [*command, "--http_port", "0", "--grpc_port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        timer = threading.Timer(FAR_S, self.child.kill)
        timer.start()
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.said.append(line)
            if found := re.match(r"gRPC at (\S+), metrics at http://(\S+)/metrics", line):
                self.rpc, self.http = found.groups()
                break
        else:
            raise AssertionError("".join(self.said))
        timer.cancel()
        timer.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.communicate()

    def end(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.child.send_signal(signal.SIGTERM)
        text, _ = self.child.communicate(timeout=FAR_S)
        self.said.append(text)
        return self.child.returncode

    def ask(
        self,
        path: str,
        body: str | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        there = connection or http.client.HTTPConnection(self.http, timeout=FAR_S)
        there.request("GET" if body is None else "POST", path, body)
        reply = there.getresponse()
        told = reply.read()
        if connection is None:
            there.close()
        return reply.status, json.loads(told)
