"""A model of a job that still trains: each newest generation is a version (deltas.py, follow.py).

A request is answered by the one generation that it began with, so by one cut of the job.
"""

from __future__ import annotations

import threading

from ..common.errors import EdlError, UsageError
from ..nn.device import choose_device
from .columns import told_of
from .deltas import Generation
from .follow import Follower
from .from_checkpoint import CheckpointOpener, DefinedServable, Options, about_of
from .live import LiveModels
from .repository import Repository


class Following:
    """A Bringer of generations, by a thread of its own."""

    def __init__(
        self,
        name: str,
        where: str,
        options: Options,
        *,
        period_s: float,
        first_s: float,
        max_age_s: float = 0.0,
    ) -> None:
        """`where`: what the job has as --delta_dir. `first_s`: to wait for its first base.

        `max_age_s`: of the cut that answers, for the model to be ready; 0: any.

        Raises UsageError where there is no such kind of folder.
        """
        self.name, self.max_age_s, self._where = name, max_age_s, where
        self._options, self._first_s = options, first_s
        self._opener = CheckpointOpener(options)
        self._models: tuple[object, LiveModels] | None = None
        self._repository: Repository | None = None
        self._tried = threading.Event()
        self._failure = ""
        self._follower = Follower(where, self._take, period_s=period_s)

    def begin(self, repository: Repository) -> None:
        """Wait for the first generation. Raises UsageError where there is none, or no model."""
        self._repository = repository
        self._follower.start()
        try:
            self._follower.first(self._first_s)
        except EdlError as error:
            raise UsageError(str(error)) from error
        # It is current before it is taken: opened, warmed and installed.
        if not self._tried.wait(self._first_s) or self._failure:
            raise UsageError(self._failure or f"{self._where}: no model within {self._first_s:g} s")

    def look(self) -> None:
        """Do nothing: the follower looks."""

    def close(self) -> None:
        self._follower.close()

    def _take(self, generation: Generation) -> None:
        assert self._repository is not None
        version = str(generation.version)
        try:
            with told_of(generation.where):  # of the user's code: the next generation may be one
                self._repository.swap(self.name, self._opened(generation, version))
        except EdlError as error:
            self._failure = str(error)
            self._repository.model(self.name).fail(version, str(error))
        self._tried.set()

    def _opened(self, generation: Generation, version: str) -> DefinedServable:
        sampled = self._opener.read(generation)
        if self._models is None or self._models[0] is not sampled.definition:
            device = choose_device(self._options.device, 0)
            models = LiveModels(sampled.definition.model, device=device)
            self._models = sampled.definition, models
        model = self._models[1].of(generation)
        about = about_of(generation, generation.version, generation.manifest.created)
        about |= {"records": generation.about.records, "cut_number": generation.about.number}
        return DefinedServable(self.name, version, model, sampled, about)
