"""When the trainer asks the servers for dense values, and on which versions it says it computed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from edl.nn.optimizers import SGD
from edl.ps.client import Pulled
from edl.worker.ps_trainer import PsTrainer, model_spec


class Servers:
    """One shard whose version rises with each pull; remembers which pulls were dense."""

    def __init__(self):
        self.dense = []

    def agree(self, spec, *, timeout_s):
        """Any model will do."""

    def pull(self, tables, *, dense=None, cut="", full=False, timeout_s):
        self.dense.append(dense is not None)
        for values in (dense or {}).values():
            values[...] = 7.0 if cut else 1.0
        return Pulled(True, (len(self.dense),), {}, frozenset(dense or ()))


def trainer(servers, **options):
    make = lambda: torch.nn.Linear(1, 1)
    return PsTrainer(
        make,
        lambda outputs, labels: outputs.sum(),
        servers,
        model_spec(make(), SGD(), 0),
        device=torch.device("cpu"),
        **options,
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_dense_values_pulled_ahead_are_as_new_as_those_that_are_not(steps):
    """In both cases every `steps`-th minibatch computes on values of its own pull."""
    servers = Servers()
    made = trainer(servers, get_model_steps=steps, ahead=True)
    features = torch.ones(1, 1)
    ahead = None
    with ThreadPoolExecutor(1) as pool:
        for _ in range(6):
            pull = made.begin({}, ahead.result() if ahead else None)
            ahead = made.start_pull({}, pool)
            made.gradients(features, None, {}, pull, ())

    assert [n % steps == 0 for n in range(7)] == servers.dense


def test_parameters_that_the_servers_call_stale_are_pulled_again():
    servers = Servers()
    made = trainer(servers, get_model_steps=100)
    made.begin({}, None)
    before = made.empty().versions

    made.outdated()
    made.begin({}, None)

    assert (before, [1], [2]) == ([1], before, made.empty().versions)


def test_a_pull_of_the_present_that_comes_late_does_not_change_an_evaluation(monkeypatch):
    """One that was started ahead for a batch whose lease was lost meanwhile."""
    made = trainer(Servers(), ahead=True)
    made.begin({}, None)
    install = made._install

    def late(pull):
        thread = threading.Thread(target=made._pull, args=({}, "", True))
        thread.start()
        thread.join(0.3)
        install(pull)

    monkeypatch.setattr(made, "_install", late)

    assert 14.0 == float(made.outputs(torch.ones(1, 1), {}, "cut"))
