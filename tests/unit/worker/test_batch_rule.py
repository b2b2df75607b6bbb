"""The size of a minibatch, and the learning rate, when the number of workers changes."""

from types import ModuleType

import pytest
from torch import nn

from edl.common.errors import DefinitionError, UsageError
from edl.common.settings import JobSettings
from edl.model_zoo.spec import Definition
from edl.nn import SGD
from edl.worker.describe import describe
from edl.worker.group.batch_rule import make_rule
from edl.worker.group.state import GroupState
from edl.worker.model import model_spec

pytestmark = pytest.mark.fast


def rule(settings=None, **parts):
    module = ModuleType("definition")
    vars(module).update(parts)
    definition = Definition("d", __file__, "", module)
    return make_rule(definition, JobSettings(minibatch_size=64, num_workers=4, **settings or {}))


def test_the_minibatch_stays_as_it_is():
    assert [(64, 1.0)] * 3 == [rule()(workers) for workers in (1, 4, 9)]


def test_it_grows_with_the_workers_and_the_learning_rate_with_it():
    """ "When the minibatch size is multiplied by k, multiply the learning rate by k"
    (Goyal et al. 2017, section 2.1)."""
    linear = rule({"batch_rule": "linear"})

    assert [(16, 0.25), (64, 1.0), (128, 2.0)] == [linear(workers) for workers in (1, 4, 8)]


def test_a_definitions_own_rule_goes_before():
    def batch_rule(workers, wanted, minibatch_size):
        return minibatch_size + workers, wanted / 8

    assert (66, 0.5) == rule({"batch_rule": "linear"}, batch_rule=batch_rule)(2)


@pytest.mark.parametrize("made", [64, (0, 1.0), (64, 0.0), (64.0, 1.0), None])
def test_a_rule_that_returns_something_else_is_told_of(made):
    def batch_rule(workers, wanted, minibatch_size):
        return made

    with pytest.raises(DefinitionError, match=r"batch_rule.*records of a minibatch"):
        rule(batch_rule=batch_rule)(2)


def test_a_definitions_own_rule_and_the_adaptive_one_contradict_each_other(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from edl.model_zoo.iris import *\n"
        "def batch_rule(workers, wanted, minibatch_size):\n    return minibatch_size, 1.0\n"
    )
    settings = JobSettings(model_def=str(file), batch_rule="adaptive", max_minibatch_size=128)

    with pytest.raises(UsageError, match=r"own has a batch_rule of its own.*leave out one"):
        describe(settings, tmp_path)


def state_at(version):
    model = nn.Linear(1, 1)
    state = GroupState(model, model_spec(model, SGD(), 0))
    state.begin()
    state.version = version
    return state


def factors(state, steps, warmup):
    found = []
    for _ in range(steps):
        found.append(round(state.lr_factor(warmup), 6))
        state.version += 1
    return found


def test_the_learning_rate_follows_over_the_warm_up():
    state = state_at(100)

    state.follow(2.0, 4)

    assert [1.25, 1.5, 1.75, 2.0, 2.0] == factors(state, 5, 4)


def test_a_change_in_the_midst_of_a_warm_up_begins_where_that_is():
    state = state_at(100)
    state.follow(2.0, 4)
    assert [1.25] == factors(state, 1, 4)

    state.follow(0.5, 4)  # the next would have been 1.5

    assert [1.25, 1.0, 0.75, 0.5, 0.5] == factors(state, 5, 4)


def test_without_a_warm_up_it_is_there_at_once_and_a_new_job_begins_with_it():
    late, first = state_at(100), state_at(0)
    late.follow(2.0, 0)
    first.follow(2.0, 100)

    assert (2.0, 2.0) == (late.lr_factor(0), first.lr_factor(100))


def test_a_latecomer_gets_it_with_the_state():
    state, other = state_at(100), state_at(-1)
    state.follow(2.0, 4)

    other.unpack(state.pack())

    assert factors(state, 5, 4) == factors(other, 5, 4)
