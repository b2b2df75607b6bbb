"""First values of tables that are the definition's own: workers bring them to the servers."""

import pytest
import torch
from tools.inprocess import InProcess
from torch import nn

from edl.nn import SGD, Embedding
from edl.nn.moved import take_first_rows
from edl.nn.replace import prepare
from edl.worker.group.row_exchange import RowExchange
from edl.worker.model import model_spec
from edl.worker.servers.trainer import PsTrainer

OWN = torch.randn(50, 4, generator=torch.Generator().manual_seed(2))
IDS = torch.tensor([0, 49, 7])
CPU = torch.device("cpu")


def make_model():
    torch.manual_seed(0)
    rows = nn.Embedding.from_pretrained(OWN.clone(), freeze=False)
    model = nn.Sequential(rows, nn.Linear(4, 1))
    prepare(model, 1)
    return model


def in_one_process():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding.from_pretrained(OWN.clone(), freeze=False), nn.Linear(4, 1))


def test_a_worker_of_servers_begins_with_the_rows_of_its_definition():
    servers, lr = InProcess(), 0.5
    spec = model_spec(make_model(), SGD(lr=lr), 0)
    trainer = PsTrainer(make_model, lambda out, _: out.mean(), servers, spec, device=CPU)
    torch_model = in_one_process()
    optimizer = torch.optim.SGD(torch_model.parameters(), lr=lr)

    pulled = trainer.begin({}, None)
    gradients = trainer.gradients(IDS, None, {}, pulled, (0, 1, 0))
    trainer.push(0, 1, 0, 3, gradients)
    torch_model(IDS).mean().backward()
    optimizer.step()

    assert isinstance(trainer.model[0], Embedding)
    assert {} == take_first_rows(trainer.model)  # they would take the memory of the table
    everything = torch.arange(50)
    with torch.no_grad():
        torch.testing.assert_close(torch_model(everything), trainer.outputs(everything, {}, ""))
    pulled = servers.pull({"0": everything.numpy()}).rows["0"]
    torch.testing.assert_close(torch_model[0].weight.detach(), torch.from_numpy(pulled))


def test_a_member_of_a_hybrid_group_begins_with_them_too():
    servers, model = InProcess(), make_model()
    spec = model_spec(model, SGD(lr=0.5), 0).of_servers
    servers.agree(spec, rows_given={"0": 50})
    exchange = RowExchange(
        model,
        servers,
        spec,
        CPU,
        first_rows=lambda: take_first_rows(make_model()),
        patience_s=10.0,
        before_reduce=lambda: pytest.fail("no step is made here"),
    )

    exchange.attach(IDS)

    with torch.no_grad():
        assert torch.equal(OWN[IDS], model[0](IDS))
