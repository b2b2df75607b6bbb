"""The address of this machine, as a test may use it."""

from __future__ import annotations

import socket

import psutil
import pytest


def address() -> str:
    """Return an address that is not on loopback; skip the test where there is none."""
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address
    pytest.skip("this machine has no address but loopback")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port
