"""The addresses of teachers that somebody else runs, as users write them. Pure.

HOST:PORT is one of `edl teach` or of another job. kserve+http://HOST:PORT/MODEL[/VERSION] is a
model of a server that speaks KServe's v2 protocol, over HTTP; kserve+https, kserve+grpc and
kserve+grpcs are its other ways.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# scheme: carrier, whether it encrypts
_SCHEMES = {
    "kserve+http": ("http", False),
    "kserve+https": ("http", True),
    "kserve+grpc": ("grpc", False),
    "kserve+grpcs": ("grpc", True),
}


class Served(NamedTuple):
    """A model behind KServe's v2 protocol. `carrier`: http or grpc; `version` "": the server's."""

    address: str  # as it was written
    carrier: str
    encrypts: bool
    host: str
    port: int
    model: str
    version: str


def split_addresses(text: str) -> list[str]:
    """Return the addresses of a list with commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


def served_at(address: str) -> Served | None:
    """Return the model of a server at an address; None: HOST:PORT, a teacher of ours.

    Raises ValueError, with what it should be, where it is neither.
    """
    scheme, found, _ = address.partition("://")
    if not found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError("is no HOST:PORT")
        return None
    if scheme not in _SCHEMES:
        raise ValueError(f"is of no known kind: {', '.join(_SCHEMES)}")
    expected = f"is no {scheme}://HOST:PORT/MODEL[/VERSION]"
    try:
        url = urlsplit(address)
        host, number = url.hostname or "", url.port or 0
    except ValueError as error:  # a port that is no number, an address that does not end
        raise ValueError(expected) from error
    path = [unquote(each) for each in url.path.split("/")[1:]]
    more = url.query or url.fragment or "@" in url.netloc
    if not host or not number or more or len(path) not in (1, 2) or not all(path):
        raise ValueError(expected)
    carrier, encrypts = _SCHEMES[scheme]
    return Served(address, carrier, encrypts, host, number, path[0], "".join(path[1:]))
