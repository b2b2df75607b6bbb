"""Files of what a job is given in memory: written beside the jobs, and moved into its folder.

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
from ..k8s import objects
from . import memory
from .definition import text_of

_MOST_NBYTES = (1 << 20) - 4096  # of a ConfigMap, all of it


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

    def for_pods(self, settings: JobSettings) -> tuple[JobSettings, str]:
        """Return the settings by which pods find the definition, and its text; "": none is here.

        Raises UsageError for data, and for a text that no ConfigMap holds.
        """
        if data := [name for name in self._files if name != "model_def"]:
            raise UsageError(
                f"{data[0]} is in the memory of this process, which no pod can read: write it "
                "where pods can, and give that path or URL."
            )
        if not self._files:
            return settings, ""
        text = self._files["model_def"].read_text(encoding="utf-8")
        if len(text.encode()) > _MOST_NBYTES:
            raise UsageError(
                "The definition has more than 1 MiB as source, and no ConfigMap holds that: put it "
                "into the image (`edl zoo build`), and give its path there."
            )
        volumes = [settings.volume, objects.definition_volume(settings.job_name)]
        volume = ";".join(filter(None, volumes))
        named = dataclasses.replace(settings, model_def=objects.DEFINITION, volume=volume)
        return named, text

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
