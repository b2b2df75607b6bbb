"""Code of others that runs here: the user's, torch's exporter, onnxruntime.

It may raise anything and print what it likes; a user of ours is told one sentence.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from ..common.errors import EdlError

_MOST = 300  # characters of what is said
_TALKS = (
    "torch.export",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx",
    "torch.onnx._internal.exporter._registration",
    "onnxscript",
)


@contextlib.contextmanager
def told_as(kind: type[EdlError], said: str, more: str = "") -> Iterator[None]:
    """Make whatever the block raises an error of ours: these words, the first line of it, more.

    An error of ours passes as it is.
    """
    try:
        yield
    except EdlError:
        raise
    except Exception as error:  # that of code which is not ours may be any
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        what = f"{type(error).__name__}: {lines[0][:_MOST]}" if lines else type(error).__name__
        raise kind(f"{said}: {what}{more}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep back what torch prints, logs and warns of its own parts, in this block."""
    loggers = [logging.getLogger(name) for name in _TALKS]
    levels = [each.level for each in loggers]
    try:
        for each in loggers:
            each.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
