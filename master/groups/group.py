"""The seam between a job's course and the holder of its parameters: servers, a group, or both.

`ServerGroup` holds them on servers, `Collective` on the workers themselves, `Hybrid` on both. Only
the place where a master is put together (master.py) knows which one a job has. Each is made of
three parts: its cuts, the map of its servers, and its workers as those who lease tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...common.places import Place
from ...durable.loop import Script
from ...durable.schema import Json
from ...proto import master_pb2 as pb
from ..books.task import Task
from ..membership import Member
from .meeting import Meeting
from .server_map import ServerMap
from .servers import Cut, Snapshot


class Cuts(Protocol):
    """The states of a group that may be read while training goes on, and the one that it has left.

    `snapshot`, `unpin` and `kept` block, and are called in the background; all else is called by
    the loop's thread.
    """

    def take(self) -> Script[tuple[Cut, dict[str, Any]]]:
        """Return one state of the whole group, pinned, and the books of that very state.

        Raises JobError.
        """
        ...

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        """Return the cut that an evaluation reads, with its books where it has some."""
        ...

    def snapshot(self, cut: str, directory: Place) -> Snapshot:
        """Write a cut into a folder, and return its files.

        Raises EdlError.
        """
        ...

    def unpin(self, cut: str) -> None:
        """Forget a cut."""
        ...

    @property
    def left(self) -> Cut | None:
        """The state that the last worker has left, if any; `name`: the folder with the files."""
        ...

    def stand(self) -> None:
        """Have the queue's positions be those of what is left.

        Nobody goes on from another state.
        """
        ...

    def kept(self, left: Cut, directory: Place) -> Snapshot:
        """Bring what the last worker has left to the folder of a checkpoint.

        Raises EdlError.
        """
        ...


class Workers(Protocol):
    """The workers of a job as those who lease its tasks: each by itself, or together in rounds."""

    @property
    def trains_in_rounds(self) -> bool:
        """Tell whether the workers train together, in rounds: they have a Meeting."""
        ...

    @property
    def lessee(self) -> str:
        """The name of the round that holds the leases of train tasks; "" where workers do."""
        ...

    def lessee_of(self, incarnation: str, round: int) -> str:
        """Return who holds the leases that a worker works on: itself, or the round it is in now."""
        ...

    def owes(self, incarnation: str) -> str:
        """Return the round that this worker has not left in order; "" where there is none."""
        ...

    def lease(self, request: pb.GetTaskRequest, evaluating: bool) -> Sequence[Task] | None:
        """Return the tasks that a worker gets now, which may be none, with the lease journaled.

        None: its round is over. `evaluating`: an evaluation is under way.
        """
        ...

    def all_train(self, workers: Sequence[Member]) -> bool:
        """Tell whether these workers, which are all that there are, train as they last said."""
        ...

    def failed(self) -> None:
        """Note that a member of the round cannot finish the step under way: its content fails."""
        ...

    def lost(self, incarnation: str) -> None:
        """Note that a worker is gone."""
        ...

    def overdue(self) -> list[int]:
        """Return the workers that did not come back to the group in time, each once."""
        ...

    def members(self) -> Meeting:
        """Return where workers meet for rounds.

        Raises UsageError where each trains by itself.
        """
        ...


class Group(Protocol):
    """The holder of the parameters, as a master sees it.

    Scripts run on the loop (durable/loop.py). All is called by the loop's thread, and answers at
    once.
    """

    @property
    def cuts(self) -> Cuts:
        """The states of this group, for whoever writes or evaluates one."""
        ...

    @property
    def server_map(self) -> ServerMap:
        """The map of servers, which is empty where the group has none."""
        ...

    @property
    def workers(self) -> Workers:
        """The workers of the job, as those who lease tasks."""
        ...

    @property
    def version(self) -> int:
        """A number that rises whenever somebody who holds parameters is replaced.

        Whatever was asked of an older one may be void, and is asked again.
        """
        ...

    @property
    def connected(self) -> bool:
        """Tell whether everybody who holds parameters has been there."""
        ...

    def memory(self) -> Json:
        """Return all that a successor of the master must know of the group, as JSON values."""
        ...

    def remember(self, memory: Json) -> None:
        """Go on where the master before ended.

        Raises ValueError where it wrote something else.
        """
        ...

    def settle(self) -> None:
        """Do what the state calls for, after each batch of events."""
        ...

    def close(self) -> None:
        """Let go of the group: whoever waits for it need not wait any longer."""
        ...

    def steps(self) -> Script[int]:
        """Return the steps so far, once all of the group is there."""
        ...

    def flush(self) -> Script[None]:
        """Make a step of what waits for others, in sync mode."""
        ...
