import os

import pytest

from edl.adaptive import collective, pace, session

TOLD = ("EDL_", "ADAPTDL_", "MASTER_", "WORLD_SIZE", "RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_")


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A training process that begins anew: nobody told it anything, and no signal is taken."""
    for name in [*os.environ, "EDL_REPLICA_RANK", "EDL_NUM_REPLICAS"]:
        if name.startswith(TOLD):
            monkeypatch.setenv(name, "")  # so that what the test sets goes with it
            monkeypatch.delenv(name)
    monkeypatch.setattr(collective.Preemption, "install", lambda self: None)
    monkeypatch.setattr(pace, "PACE_S", 0.0)  # an exchange between any two steps
    session.reset()
    yield
    session.reset()


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """A folder that checkpoints go to."""
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path))
    return tmp_path


class Played(collective.Control):
    """One of several replicas that run one after the other, rank 0 first.

    What rank 0 heard is on the tape, and the others hear it in the same order: so they must make
    the same calls. What is gathered is rank 0's value for all.
    """

    def __init__(self, rank, replicas, tape):
        super().__init__()
        self.rank, self.replicas = rank, replicas
        self._tape = tape if rank == 0 else iter(tape)

    def _heard(self, call, value):
        if self.rank == 0:
            self._tape.append((call, value))
            return value
        then, value = next(self._tape)
        assert then == call
        return value

    def broadcast(self, value, source=0):
        return self._heard("broadcast", value)

    def broadcast_bytes(self, data, source=0):
        return self._heard("broadcast_bytes", data)

    def gather(self, value):
        return self._heard("gather", [value] * self.replicas)


@pytest.fixture
def restart(process):
    """Let the process be replica `rank` of `replicas` from now on, and know nothing else."""
    tape = []

    def begin(rank=0, replicas=1):
        if rank == 0:
            tape.clear()
        session.reset()
        session.put(collective.Control, Played(rank, replicas, tape))

    return begin
