"""Bodies that are compressed: gzip and deflate, as HTTP names them. Pure.

What is compressed may become a thousand times as large: no more is unpacked than a body may have.
"""

from __future__ import annotations

import zlib

from .refused import Refused, Why

WORTH_NBYTES = 1024  # of an answer, below which it is not worth the time
_LEVEL = 1  # answers are numbers: higher ones take long and gain little
# deflate is the format of zlib, as Triton's client and RFC 9110 have it.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def known(encoding: str) -> str:
    """Return the name of a body's encoding; "": it is as it is. Raises Refused."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in _WINDOWS:
        raise Refused(
            Why.INVALID,
            f"a body of Content-Encoding {encoding[:40]!r} is not taken: send gzip, deflate, or "
            "the body as it is",
        )
    return name


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """Return a body as it was before it was compressed, of at most so many bytes.

    Raises Refused, also where it is none or has more.
    """
    one = zlib.decompressobj(_WINDOWS[encoding])
    try:
        whole = one.decompress(body, most + 1)
    except zlib.error as error:
        raise Refused(Why.INVALID, f"the body is no {encoding}: {error}") from error
    if len(whole) > most:
        raise Refused(
            Why.TOO_LARGE,
            f"the request has more than {most} bytes once it is unpacked, and no more are taken "
            "(--max_body_mib)",
        )
    if not one.eof:
        raise Refused(Why.INVALID, f"the body ends in the midst of its {encoding}")
    if one.unused_data:
        raise Refused(Why.INVALID, f"behind the body's {encoding} are {len(one.unused_data)} bytes")
    return whole


def chosen(accepted: str) -> str:
    """Return the encoding that an Accept-Encoding likes best of ours; "": none."""
    best, liked = "", 0.0
    for each in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if name in _WINDOWS and quality > liked:
            best, liked = name, quality
    return best


def packed(body: bytes, encoding: str) -> bytes:
    """Return a body in one of our encodings."""
    one = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return one.compress(body) + one.flush()
