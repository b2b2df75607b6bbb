"""What model() froze stays in evaluation mode, what is trained does not."""

import pytest
import torch
from tools.inprocess import InProcess
from torch import nn

from edl.nn import SGD
from edl.nn.modes import Modes
from edl.worker.model import model_spec
from edl.worker.servers.trainer import PsTrainer


def backbone():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def training(model):
    return {name: module.training for name, module in model.named_modules() if name}


def test_a_frozen_part_evaluates_while_the_rest_trains_after_an_evaluation_too():
    model = nn.Sequential(backbone().requires_grad_(False).eval(), backbone())
    modes = Modes(model)
    expected = {name: not name.startswith("0") for name in training(model)}

    for _ in range(2):
        modes.train()
        assert expected == training(model)
        model.eval()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(backbone().eval(), nn.Linear(4, 1)),  # as libraries give what they loaded
        nn.Sequential(backbone(), nn.Dropout()).eval(),
        nn.Sequential(backbone().requires_grad_(False), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(3, 4), nn.Dropout().eval()),
    ],
    ids=["trained part in evaluation", "whole in evaluation", "frozen but not in it", "dropout"],
)
def test_all_else_trains_from_the_first_step_on(model):
    Modes(model).train()

    assert all(training(model).values())


def test_running_statistics_of_a_frozen_norm_do_not_move_on_servers():
    def make_model():
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3).requires_grad_(False).eval())

    servers, spec = InProcess(), model_spec(make_model(), SGD(lr=0.1), 0)
    trainer = PsTrainer(
        make_model, lambda out, _: out.square().mean(), servers, spec, device=torch.device("cpu")
    )
    for step in range(2):
        pulled = trainer.begin({}, None)
        gradients = trainer.gradients(torch.randn(8, 3) + 5, None, {}, pulled, (0, 1, step))
        trainer.push(0, 1, 8 * step, 8 * step + 8, gradients)
        trainer.outputs(torch.ones(2, 3), {}, "")
    trainer.refresh()

    first, frozen = trainer.model
    assert torch.equal(torch.zeros(3), frozen.running_mean)
    assert (first.running_mean > 0.5).all()
