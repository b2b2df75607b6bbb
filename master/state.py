"""The queue's state in a journal, as a restarted master reads it by the schema of this version.

The journal has a format number. FORMAT is what this version writes: the names and the fields of
decisions.py, task.QueueState and memory.Memory. What an older version has left is read by a reader
of its own (format_0.py), and written anew in this one's format before anything else is.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..durable.journal import Journal
from ..durable.schema import Json, dump, load
from . import format_0
from .books import decisions
from .books.queue_view import QueueView
from .books.task import QueueState
from .books.task_queue import TaskQueue
from .core import MEMORY

FORMAT = 1


def dump_queue(queue: QueueView) -> Json:
    """Return the queue's state as JSON values: what a compacted journal starts from."""
    return dump(QueueState, queue.state())


def load_queue(queue: TaskQueue, values: Json) -> None:
    """Make a queue that was just made, of the same plan, what `dump_queue` was given.

    Raises ValueError, which names what is wrong, where these values are no such state.
    """
    queue.restore(load(QueueState, values))


def replay(queue: TaskQueue, made: Iterable[tuple[str, Json]]) -> None:
    """Make these decisions, as a journal has them. Raises ValueError where there is no such one."""
    for name, fields in made:
        queue.decide(decisions.read(name, fields))


def restore(queue: TaskQueue, journal: Journal) -> None:
    """Bring a queue that was just made, of the job's plan, to where its journal ends.

    A journal of an older format is written anew. Raises ValueError, which names what is wrong, or
    another error of Python's, where no master of this version or an older one has written it.
    """
    state, made = journal.replay()
    if journal.format == FORMAT:
        if state is not None:
            load_queue(queue, state["queue"])
        replay(queue, made)
        return
    memory = journal.get(MEMORY)
    if state is not None:
        queue.restore(format_0.queue_state(state["queue"]))
    for name, arguments in made:
        queue.decide(format_0.decision(name, arguments))
    named = {} if memory is None else {MEMORY: format_0.memory(memory)}
    journal.compact({"queue": dump_queue(queue)}, named)
