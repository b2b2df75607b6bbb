"""Snapshots of a group: what it would begin from should all its members be lost at once.

Each is a cut, which a member writes beside training into the folder of the group.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ...common import storage
from ...common.errors import EdlError
from ...common.places import Place
from ...durable.loop import Script
from ...proto import master_pb2 as pb
from ..core import Core
from .group_cuts import GroupCuts
from .servers import Cut
from .standing import Standing


class GroupSnapshots:
    """The script that has a group's snapshots written, into `folder`."""

    def __init__(self, core: Core, cuts: GroupCuts, standing: Standing, folder: Path) -> None:
        self._core = core
        self._cuts = cuts
        self._standing = standing
        self._folder = folder
        self._begun = False

    def begin(self) -> None:
        """Write a snapshot every `snapshot_s` from now on, if that is not 0.

        A second call changes nothing.
        """
        if not self._begun and self._core.settings.snapshot_s > 0:
            self._begun = True
            self._core.loop.spawn(self._run())

    def _run(self) -> Script[None]:
        """Write a snapshot now and then, for as long as there is training."""
        core = self._core
        kept = core.version
        while not core.ended:
            yield from core.loop.sleep(core.settings.snapshot_s)
            if core.version == kept or core.status.state != "running":
                continue
            cut = yield from self._cuts.have_taken(pb.Order.TAKE)
            try:
                directory = yield core.loop.background(lambda: self._write(cut))  # noqa: B023
            except (OSError, EdlError) as error:
                core.tell(f"snapshot of step {cut.version} cannot be written: {error}")
            else:
                kept, older = cut.version, Path(self._standing.base.path)
                self._standing.keep(str(directory), kept, cut.applied)
                core.save()
                if older.parent == self._folder:
                    shutil.rmtree(older, ignore_errors=True)
            self._cuts.unpin(cut.name)

    def _write(self, cut: Cut) -> Place:
        """Have a cut written, and return its folder.

        Runs in the background.
        """
        directory = storage.free_directory(self._folder, cut.version)
        directory.make()
        self._cuts.snapshot(cut.name, directory).write_manifest(directory, cut.version)
        return directory
