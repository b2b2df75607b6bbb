"""The seams of a worker: what its two loops ask of a trainer, and its heartbeat of a loop.

A strategy is a trainer. One that keeps the model on servers (`ServerTrainer`) is run by
servers/loop.py, one whose members agree on each step (`GroupTrainer`) by group/loop.py; factory.py
makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..proto import master_pb2 as pb

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..ps.worker_client import Pulled, PushResult
    from .group.slices import Slice
    from .servers.ids import Unique
    from .servers.rows import Ids, Values
    from .task_reader import Lease
    from .task_stream import Item


class Trainer(Protocol):
    """The model that is trained, as a definition's own functions get it."""

    model: nn.Module

    def refresh(self) -> None:
        """Make the values of now the model's."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's values, on the CPU."""
        ...


class Tasks(Protocol):
    """A definition's own functions for tasks, and its callbacks (tasks.py)."""

    definition_file: str

    @property
    def follows_steps(self) -> bool: ...

    def step_begin(self, epoch: int, version: int) -> None: ...

    def step_end(self, version: int, loss: float, logs: dict[str, float] | None) -> None: ...

    def epochs_end(self) -> None: ...

    def evaluate(self, lease: Lease, outputs: Any, labels: Any, features: Any) -> None: ...

    def evaluated(self, lease: Lease) -> bytes: ...

    def merge(self, payload: bytes) -> dict[str, Any]: ...

    def predict(
        self, lease: Lease, outputs: Any, records: int, ids: Mapping[str, Any] | None = None
    ) -> None: ...

    def predicted(self, lease: Lease) -> None: ...

    def train_end(self, trainer: Trainer) -> None: ...

    def task_end(self, lease: Lease) -> None: ...


# -- on servers


@dataclass
class Gradients:
    """The push of one minibatch, and the versions (by shard) that it was computed on.

    `lost`: by dense tensor, what this push added to what its codes have lost so far.
    """

    versions: list[int]
    dense: dict[str, Values] = field(default_factory=dict)
    rows: dict[str, tuple[Ids, Values]] = field(default_factory=dict)
    loss: float | None = None
    lost: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Pull:
    """A pull's rows and versions; `dense`: whether it brought the dense values too."""

    pulled: Pulled
    dense: bool


Prepared = Mapping[str, "Unique"]  # by table: the distinct ids of a batch


class ServerTrainer(Trainer, Protocol):
    """One model on parameter servers: pull, compute, push."""

    @property
    def version(self) -> int:
        """The newest version seen."""
        ...

    def start_pull(
        self, prepared: Prepared, pool: Executor, after: Collection[Future[PushResult]] = ()
    ) -> Future[Pull]:
        """Pull for a coming batch while this one computes, once the pushes `after` have ended."""
        ...

    def begin(self, prepared: Prepared, ahead: Pull | None) -> Pull:
        """Pull (or take what was pulled ahead), and make the dense values the model's."""
        ...

    def gradients(
        self, features: Any, labels: Any, prepared: Prepared, pull: Pull, stream: tuple[int, ...]
    ) -> Gradients:
        """Compute on what `begin` returned.

        `stream` names the span, and seeds what is drawn.
        """
        ...

    def empty(self) -> Gradients:
        """Return what a span without records pushes."""
        ...

    def push(
        self, task: int, attempt: int, start: int, end: int, gradients: Gradients
    ) -> PushResult:
        """Push one span and wait for all acknowledgements.

        Called in another thread.
        """
        ...

    def withdraw(self, gradients: Gradients) -> None:
        """Forget gradients that were not applied, and will not be."""

    def outdated(self) -> None:
        """Pull the model's values again: the servers call them stale."""

    def outputs(self, features: Any, prepared: Prepared, cut: str) -> Any:
        """Return the model's outputs in evaluation mode, of the cut ("": of now)."""
        ...


# -- in a group


class Step(Protocol):
    """A step that all members of a group agree on."""

    @property
    def loss(self) -> float: ...

    @property
    def ends_round(self) -> bool: ...


StepT = TypeVar("StepT", bound=Step)


class GroupTrainer(Trainer, Protocol[StepT]):
    """One member of a group whose members make every step together, or none of them makes it."""

    def follow(self, factor: float) -> None:
        """Let the learning rate go to `factor` times what the optimizer says."""

    def enter(self, world: int) -> None:
        """Begin a round: train with `world` members, in torch's default process group."""

    def leave(self) -> None:
        """End the round."""

    def reduce(self, piece: Slice, wish: bool) -> StepT:
        """Compute a step with all members.

        `wish`: the round shall end after it. Raises NonFinite, torch's errors, or the user's.
        Nothing of the state has changed.
        """
        ...

    def commit(self, step: StepT) -> None:
        """Apply a step."""

    def pass_over(self, piece: Slice) -> None:
        """Count a minibatch of which no record is used."""

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs in evaluation mode, on the CPU."""
        ...

    # What few strategies need. Whoever derives from this class may leave it out.

    def keep(self, step: StepT) -> StepT:
        """Return the step as it stays while others are computed."""
        return step

    def look_ahead(self, _item: Item | None) -> None:
        """See what the stream has next after a `reduce`; None: nothing yet."""
        return

    def finish(self) -> None:
        """Wait for what this member has under way beside the group."""
        return

    def settle(self) -> int:
        """Wait until nothing is under way beside the group; all call this after the same step.

        Returns the version of the servers that have what was pushed; 0 where there are none.
        """
        return 0


# -- for the heartbeat


@dataclass(frozen=True)
class Beat:
    """A heartbeat of a member.

    `round`: 0 where it is in none.
    """

    progress: list[pb.Progress]
    version: int
    scalars: dict[str, float]
    round: int = 0


class Shown(Protocol):
    """A member's state in a word, as it is shown (reports.Status)."""

    state: str


class Member(Protocol):
    """A worker at work, as its heartbeat and its signal handlers see it."""

    @property
    def status(self) -> Shown: ...

    def run(self) -> None:
        """Work until all is done or the member was drained.

        Raises Fenced.
        """

    def drain(self) -> None:
        """End in order, soon."""

    def fence(self) -> None:
        """End at once: the master has declared this incarnation lost."""

    def beat(self) -> Beat:
        """Return what the heartbeat tells.

        Called from its thread.
        """
        ...
