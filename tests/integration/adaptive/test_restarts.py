"""Replicas that are real processes: preempted, killed, and started again in other numbers."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from tools.elastic import elastic, generation
from torch import distributed

from edl.adaptive import checkpoint, collective, pace
from edl.adaptive.accumulator import Accumulator
from edl.adaptive.data import AdaptiveDataLoader
from edl.adaptive.env import num_replicas, num_restarts, replica_rank
from edl.adaptive.epoch import remaining_epochs_until
from edl.adaptive.process_group import init_process_group

RECORDS = 101


def read(say, *, signal_after=None):
    """Read two epochs of a loop; the last replica gets a signal after so many batches."""
    pace.PACE_S = 0.0  # all hear of it in the next step
    init_process_group("gloo")
    loader = AdaptiveDataLoader(range(RECORDS), batch_size=8, shuffle=True)
    sums = Accumulator()
    for epoch in remaining_epochs_until(2):
        for number, batch in enumerate(loader, 1):
            say((epoch, batch.tolist() if loader.weight else []))
            sums["read"] += len(batch)
            if number == signal_after and replica_rank() == num_replicas() - 1:
                os.kill(os.getpid(), signal.SIGTERM)
    with sums.synchronized():
        say(dict(sums))


def read_and_be_preempted(say):
    read(say, signal_after=5 if num_restarts() < 3 else None)


def test_a_signal_to_one_replica_stops_all_and_no_record_is_lost_or_repeated(tmp_path):
    generations = [
        generation(read_and_be_preempted, tmp_path, replicas, restarts)
        for restarts, replicas in enumerate([1, 2, 4, 3])
    ]

    codes = [[replica.code for replica in replicas] for replicas in generations]
    said = [one for replicas in generations for replica in replicas for one in replica.said]
    sums = [one for one in said if isinstance(one, dict)]
    batches = [one for one in said if isinstance(one, tuple)]
    taken = Counter((epoch, record) for epoch, records in batches for record in records)
    assert [[143], [143] * 2, [143] * 4, [0] * 3] == codes
    assert dict.fromkeys([(e, r) for e in range(2) for r in range(RECORDS)], 1) == taken
    assert [{"read": 2 * RECORDS}] * 3 == sums


def grow(say):
    """Train an epoch in each generation: of 1, 2 and 3 replicas."""
    init_process_group("gloo")
    for epoch in remaining_epochs_until(3):
        sums = Accumulator()
        for batch in AdaptiveDataLoader(range(10), batch_size=3):
            sums["sum"] += int(batch.sum())
        with sums.synchronized():
            say((epoch, distributed.get_world_size(), dict(sums)))
        if epoch == num_restarts():
            break
    checkpoint.save_all_states()
    return 0 if num_replicas() == 3 else num_replicas() + 1


def test_generations_go_on_with_the_next_epoch(tmp_path):
    generations = elastic(grow, tmp_path)

    said = [replica.said for replicas in generations for replica in replicas]
    assert [[(n, n + 1, {"sum": 45})] for n in range(3) for _ in range(n + 1)] == said


class Deadly(checkpoint.State):
    """A state whose second save kills the process, the checkpoint half written."""

    value = 0

    def save(self, fileobj):
        fileobj.write(b"%d" % self.value)
        if self.value == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def load(self, fileobj):
        self.value = int(fileobj.read())


def save_twice(say):
    init_process_group("gloo")
    state = Deadly("deadly")
    say(checkpoint.load_state(state))
    say(state.value)
    if num_restarts() == 0:
        for state.value in (1, 2):
            checkpoint.save_all_states()


def test_a_process_that_is_killed_while_it_saves_leaves_the_older_checkpoint(tmp_path):
    first = generation(save_twice, tmp_path, 2)
    second = generation(save_twice, tmp_path, 1, restarts=1)

    assert [-signal.SIGKILL, 1] == [replica.code for replica in first]  # the other one is told
    assert ["checkpoint-000000"] == [p.name for p in tmp_path.iterdir() if p.name[0] != "."]
    assert [True, 1] == second[0].said


class Number(checkpoint.State):
    value = 0

    def save(self, fileobj):
        fileobj.write(b"%d" % self.value)

    def load(self, fileobj):
        self.value = int(fileobj.read())


def save_on_a_machine(say):
    """Save on a disk of each replica's own; in the second generation their ranks are swapped."""
    disk = replica_rank() if num_restarts() == 0 else 1 - replica_rank()
    os.environ["EDL_CHECKPOINT_PATH"] += f"/{disk}"
    init_process_group("gloo")
    state = Number("number")
    checkpoint.load_state(state)
    say(state.value)
    state.value = 7
    checkpoint.save_all_states()


def test_the_replica_that_has_the_checkpoint_gives_it_to_the_others(tmp_path):
    said = [
        [replica.said for replica in generation(save_on_a_machine, tmp_path, 2, restarts)]
        for restarts in range(2)
    ]

    assert [[[0], [0]], [[7], [7]]] == said


def interrupt_twice(say):
    init_process_group("gloo")
    for _ in AdaptiveDataLoader(range(2)):
        os.kill(os.getpid(), signal.SIGINT)
        say("once")
        os.kill(os.getpid(), signal.SIGINT)
        say("twice")


def test_the_second_ctrl_c_kills_at_once(tmp_path):
    (replica,) = generation(interrupt_twice, tmp_path, 1)

    assert (-signal.SIGINT, ["once"]) == (replica.code, replica.said)


def meet_by_arguments(say):
    """Meet by arguments: no variable says where these replicas meet, nor who they are."""
    place = Path(os.environ["EDL_CHECKPOINT_PATH"]) / "port"
    rank = int(os.environ.pop("EDL_REPLICA_RANK"))
    for name in ("MASTER_ADDR", "MASTER_PORT", "EDL_NUM_REPLICAS", "TORCHELASTIC_USE_AGENT_STORE"):
        del os.environ[name]
    init_process_group("gloo", f"file://{place}", world_size=2, rank=rank)
    say((distributed.get_rank(), num_replicas(), collective.allreduce(rank + 1)))


def test_replicas_meet_where_the_arguments_say(tmp_path):
    replicas = generation(meet_by_arguments, tmp_path, 2)

    assert [[(0, 2, 3)], [(1, 2, 3)]] == [replica.said for replica in replicas]


def talk(say):
    """Talk without torch.distributed, then with it: what was loaded before is loaded again."""
    collective.initialize()
    later = collective.allreduce_async(num_replicas())
    say(
        (
            collective.allreduce({replica_rank()}, set.union),
            later.result(),
            collective.broadcast(replica_rank()),
        )
    )
    collective.teardown()
    loader, sums = AdaptiveDataLoader(range(9), batch_size=2, shuffle=True), Accumulator()
    init_process_group("gloo")
    if replica_rank() == 0:
        late = AdaptiveDataLoader(range(3))
    distributed.barrier()  # the others make theirs when rank 0 has its own
    if replica_rank() != 0:
        late = AdaptiveDataLoader(range(3))
    for _ in remaining_epochs_until(1):
        for number, batch in enumerate(loader):
            sums["sum"] += int(batch.sum()) if loader.weight else 0
            collective.preemption().requested |= number == 1 and num_restarts() == 0
        for batch in late:
            sums["late"] += int(batch.sum()) if late.weight else 0
        with sums.synchronized():
            say(dict(sums))


def test_replicas_talk_without_torch_s_group_and_make_loaders_before_it(tmp_path):
    first = generation(talk, tmp_path, 2)
    then = generation(talk, tmp_path, 2, restarts=1)

    assert [143, 143, 0, 0] == [replica.code for replica in [*first, *then]]
    assert [({0, 1}, 4, 0)] * 2 == [replica.said[0] for replica in then]
    assert [{"sum": 36, "late": 3}] * 2 == [replica.said[1] for replica in then]


def stand_alone(say):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        del os.environ[name]
    try:
        init_process_group("gloo")
    except Exception as error:  # noqa: BLE001  the test judges it
        say(str(error))
    else:
        say((distributed.get_world_size(), len(list(AdaptiveDataLoader(range(3))))))


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_process_needs_no_meeting_place_and_several_are_told_so(tmp_path, replicas):
    ended = generation(stand_alone, tmp_path, replicas)

    if replicas == 1:
        assert [(1, 3)] == ended[0].said
    else:
        assert all("MASTER_ADDR" in replica.said[0] for replica in ended)
