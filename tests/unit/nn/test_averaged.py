"""The moving average of weights is that of torch's AveragedModel."""

import copy

import pytest
import torch
from tools.inprocess import InProcess
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from edl.common.errors import DefinitionError
from edl.nn import SGD, Averaged
from edl.nn.moved import MovedEmbedding
from edl.nn.replace import prepare
from edl.worker.model import model_spec
from edl.worker.servers.trainer import PsTrainer

DECAY, LR = 0.9, 0.3


def net():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch(step):
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(step))


def torchs(steps):
    """Return torch's average after so many steps, and the weights that it is of."""
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(steps):
        average.update_parameters(model)
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return average, model


def test_a_model_on_servers_is_evaluated_with_torchs_average():
    servers, make = InProcess(), lambda: Averaged(net(), DECAY)
    trainer = PsTrainer(
        make,
        lambda outputs, _: outputs.square().mean(),
        servers,
        model_spec(make(), SGD(lr=LR), 0),
        device=torch.device("cpu"),
    )
    for step in range(5):
        pulled = trainer.begin({}, None)
        gradients = trainer.gradients(batch(step), None, {}, pulled, (0, 1, step))
        trainer.push(0, 1, 8 * step, 8 * step + 8, gradients)
    expected, trained = torchs(5)
    found = trainer.outputs(batch(9), {}, "")

    with torch.no_grad():
        torch.testing.assert_close(expected(batch(9)), found)
        torch.testing.assert_close(trained(batch(9)), trainer.model.module(batch(9)))


def test_a_copy_and_a_state_dict_carry_the_averages():
    model = Averaged(net(), DECAY)
    with torch.no_grad():
        for step in range(3):
            model.module[0].weight.add_(1.0)
            model(batch(step))
    other = Averaged(net(), DECAY)
    other.load_state_dict(model.state_dict())

    for found in (other, copy.deepcopy(model)):
        assert torch.equal(model.eval()(batch(7)), found.eval()(batch(7)))
    assert not torch.equal(model(batch(7)), model.train()(batch(7)))


def test_rows_that_move_to_the_servers_have_no_average():
    model = Averaged(nn.Sequential(nn.Embedding(500, 4), nn.Linear(4, 1)))

    prepare(model, 1000)

    assert isinstance(model.module[0], MovedEmbedding)
    assert ["1/weight", "1/bias"] == [*dict(model.average.named_buffers())]


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(DefinitionError, match="decay"):
        Averaged(net(), decay)
