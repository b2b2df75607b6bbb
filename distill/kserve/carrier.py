"""The protocol that both carriers of KServe's v2 keep to (HTTP, gRPC), its errors and its helpers.

A server says in HTTP's or gRPC's words why it does not answer. `Said` is what it says of this very
request, with which it may be asked again in vain; Busy and Unreachable pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from ...common.errors import Unreachable, UsageError
from ..frames import Part
from ..link import Refused
from .tensors import Input, Model

HEADERS_VARIABLE = "EDL_TEACHERS_HEADERS"
RAW_EXTENSION = "binary_tensor_data"
CONFIG_EXTENSION = "model_configuration"
_MOST_TEXT = 500  # of what a server says of an error
MAY_NOT = f" (what it wants to know of who asks can be given in {HEADERS_VARIABLE})"


class Said(Refused):
    """The server refuses the request, in its own words."""


class Carrier(Protocol):
    """A way to a model. Each call ends at its deadline; raises Said, Busy, Unreachable."""

    def model(self, deadline: float) -> Model:
        """Return what the server tells of the model."""
        ...

    def infer(self, inputs: Sequence[Input], model: Model, deadline: float) -> list[Part]:
        """Return the model's outputs. Raises ValueError for what are none."""
        ...

    def is_ready(self, deadline: float) -> bool:
        """Tell whether the server says that it is ready."""
        ...

    def close(self) -> None: ...


def short(text: str) -> str:
    """Return a server's words on one line, if they are few, and their beginning otherwise."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_TEXT else f"{line[:_MOST_TEXT]}..."


def left_until(deadline: float) -> float:
    """Return the seconds until a deadline. Raises Unreachable where it is over."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise Unreachable("the time for an answer was over")
    return left_s


def headers_of_teachers() -> dict[str, str]:
    """Return the headers that foreign teachers are sent: lines `Name: value` of the variable.

    Raises UsageError, which does not tell the values.
    """
    found = {}
    for line in os.environ.get(HEADERS_VARIABLE, "").splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        fits = name.replace("-", "").isalnum() and name.isascii() and value.isascii()
        if not colon or not fits or not value.isprintable():
            raise UsageError(
                f"{HEADERS_VARIABLE}: each line is `Name: value`, as in `Authorization: Bearer ...`"
            )
        found[name] = value
    return found
