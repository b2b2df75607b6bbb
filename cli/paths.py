"""Arguments that are a file or folder of this machine: a URL is refused."""

from __future__ import annotations

from typing import Any

import click


class LocalPath(click.Path):
    """As click's, but what is a URL would be taken for a folder of its own, `s3:`, and is refused.

    Fails as any bad parameter does, with exit code 2.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            self.fail(
                f"{value} is a URL, and this is a file or folder of this machine: give a local "
                "path, and copy from or to the store.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
