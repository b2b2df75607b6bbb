"""The addresses of teachers that somebody else runs, as users write them. Pure.

HOST:PORT is one of `edl teach` or of another job. kserve+http://HOST:PORT/MODEL[/VERSION] is a
model of a server that speaks KServe's v2 protocol, over HTTP; kserve+https, kserve+grpc and
kserve+grpcs are its other ways. edl://HOST:PORT/NAME are those that have registered under a name.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from .listen import joined

_REGISTRY = "edl"
# scheme: carrier, whether it encrypts
_SCHEMES = {
    "kserve+http": ("http", False),
    "kserve+https": ("http", True),
    "kserve+grpc": ("grpc", False),
    "kserve+grpcs": ("grpc", True),
}


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Served(NamedTuple):
    """A model behind KServe's v2 protocol. `carrier`: http or grpc; `version` "": the server's."""

    address: str  # as it was written
    carrier: str
    encrypts: bool
    host: str
    port: int
    model: str
    version: str


class Registered(NamedTuple):
    """The teachers of a name at a registry, which is at HOST:PORT."""

    address: str  # as it was written
    registry: str
    name: str


def split_addresses(text: str) -> list[str]:
    """Return the addresses of a list with commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


def why_no_name(name: str) -> str:
    """Return what is wrong with a name of teachers; "": nothing."""
    if _NAME.fullmatch(name):
        return ""
    return "is no name: letters, digits, '.', '_' and '-', 63 at most, a letter or digit first"


def served_at(address: str) -> Served | None:
    """Return the model of a server at an address; None: HOST:PORT, a teacher of ours.

    Raises ValueError, with what it should be, where it is neither.
    """
    match parse(address):
        case Registered():
            raise ValueError("names teachers of a registry, and not one")
        case found:
            return found


def registered_at(address: str) -> Registered | None:
    """Return the registry's name that an address is; None: it is that of a teacher.

    Raises ValueError, with what it should be, where it is neither.
    """
    found = parse(address)
    return found if isinstance(found, Registered) else None


def parse(address: str) -> Served | Registered | None:
    """Return what an address is of; None: HOST:PORT, a teacher of ours.

    Raises ValueError, with what it should be, where it is nothing of all that.
    """
    scheme, found, _ = address.partition("://")
    if not found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError("is no HOST:PORT")
        return None
    if scheme not in _SCHEMES and scheme != _REGISTRY:
        raise ValueError(f"is of no known kind: {', '.join((_REGISTRY, *_SCHEMES))}")
    rest = "NAME" if scheme == _REGISTRY else "MODEL[/VERSION]"
    expected = f"is no {scheme}://HOST:PORT/{rest}"
    try:
        url = urlsplit(address)
        host, number = url.hostname or "", url.port or 0
    except ValueError as error:  # a port that is no number, an address that does not end
        raise ValueError(expected) from error
    path = [unquote(each) for each in url.path.split("/")[1:]]
    more = url.query or url.fragment or "@" in url.netloc
    most = 1 if scheme == _REGISTRY else 2
    if not host or not number or more or not 0 < len(path) <= most or not all(path):
        raise ValueError(expected)
    if scheme == _REGISTRY:
        if why := why_no_name(path[0]):
            raise ValueError(f"names {path[0]!r}, which {why}")
        return Registered(address, joined(host, number), path[0])
    carrier, encrypts = _SCHEMES[scheme]
    return Served(address, carrier, encrypts, host, number, path[0], "".join(path[1:]))


def another_one(address: str, told: str, whose: str, known: str) -> str:
    """Return the sentence that tells of a teacher which may not be asked beside others.

    `told`: its fingerprint; `known`: that of the others, which is `whose`.
    """
    return (
        f"the teacher at {address} is another one ({told}) than {whose} ({known}): its values, its "
        "parameters (--teacher_params, --teacher_replies) or the modules of its definition are "
        "others. Take it out, or start a job of its own"
    )
