"""What a job is given that is in no file yet: written beside the jobs, and moved into its folder.

The settings are checked before the job has a folder, and name these files then as they would any.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ..common import paths
from ..common.errors import UsageError
from ..common.settings import JobSettings
from . import memory
from .definition import text_of


class Staged:
    """A folder of such files, which is gone when they have been moved, or are not wanted."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[str, Path] = {}  # by setting

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        if self._folder is None:
            return
        for name, module in list(sys.modules.items()):  # of a definition that was tried here
            if str(getattr(module, "__file__", None)).startswith(f"{self._folder.name}/"):
                del sys.modules[name]
        sys.path[:] = [path for path in sys.path if path != self._folder.name]
        self._folder.cleanup()

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings whose files are here."""
        return tuple(self._files)

    def definition(self, parts: Mapping[str, object]) -> str:
        """Write a definition's parts as a module; return its path. Raises DefinitionError."""
        text = text_of(parts)
        path = self._path("model_def", "definition.py")
        path.write_text(text, encoding="utf-8")
        return str(path)

    def data(self, name: str, data: object) -> str:
        """Write data as Parquet, and tell its size; return its path. Raises EdlError."""
        path = self._path(name, f"{name}.parquet")
        records, nbytes = memory.write(data, path, name)
        print(
            f"{name}: {records:,} records, {nbytes / 1e6:,.1f} MB, as Parquet in the job's folder"
        )
        return str(path)

    def move(self, settings: JobSettings, folder: Path) -> JobSettings:
        """Move all files into the job's folder; return the settings that name them there."""
        moved = {}
        for name, path in self._files.items():
            target = folder / path.name
            shutil.move(path, target)
            moved[name] = str(target.absolute())
        return dataclasses.replace(settings, **moved)  # type: ignore[arg-type]

    def _path(self, setting: str, name: str) -> Path:
        if self._folder is None:
            home = paths.home()
            if why := paths.why_unwritable(home):
                raise UsageError(
                    f"{why}. Set {paths.HOME_VARIABLE} to a folder that can be written."
                )
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder = tempfile.TemporaryDirectory(prefix=".typed-", dir=home)
        self._files[setting] = made = Path(self._folder.name) / name
        return made
