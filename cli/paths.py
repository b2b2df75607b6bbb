"""Arguments that are a file or folder of this machine: a URL is refused."""

from __future__ import annotations

from typing import Any

import click

from ..common.locations import is_local


class LocalPath(click.Path):
    """A click.Path that refuses a URL, which would be taken for a folder of its own, `s3:`.

    Fails as any bad parameter does, with exit code 2.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not is_local(value):
            self.fail(
                f"{value} is a URL, and this is a file or folder of this machine: give a local "
                "path, and copy from or to the store.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
