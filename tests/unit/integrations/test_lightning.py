"""What EdlCallback refuses, and how it resumes; with replicas: test_trainers.py."""

from __future__ import annotations

import os

import pytest
import torch
from tools.turns import in_turn
from torch.utils.data import DataLoader, TensorDataset

from edl import launch
from edl.adaptive import collective, session
from edl.common.errors import UsageError
from edl.common.order import order

pytestmark = [
    # Lightning's own, of torch and of what it advises
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]
HOOK = object()  # the model has the loader
RECORDS = TensorDataset(torch.arange(22.0).unsqueeze(1) / 22)
QUIET = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


@pytest.fixture(scope="module")
def nets():
    pytest.importorskip("lightning.pytorch", reason="the extra lightning")
    from . import lightning_nets

    return lightning_nets


@pytest.fixture
def elastic(nets, tmp_path, monkeypatch):
    from edl.integrations.lightning import EdlCallback

    for name in ("EDL_ROUND", "EDL_CHECKPOINT_VERSION", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path / "checkpoints"))
    monkeypatch.setattr("edl.adaptive.collective.Preemption.install", lambda self: None)
    session.reset()
    yield EdlCallback
    session.reset()


@pytest.fixture
def fit(tmp_path, nets):
    from lightning.pytorch import Trainer

    def run(callback, loader=None, model=None, checked=None, **arguments):
        told = {
            "max_epochs": 2,
            "use_distributed_sampler": False,
            "accelerator": "cpu",
            "devices": 1,
        }
        told |= {"default_root_dir": str(tmp_path), **dict.fromkeys(QUIET, False)}
        trainer = Trainer(callbacks=[callback], **{**told, **arguments})
        loader = None if loader is HOOK else loader or callback.loader(RECORDS)
        trainer.fit(model or nets.Net(), loader, checked)
        return trainer

    return run


def newest():
    return launch.state.newest_whole(os.environ["EDL_CHECKPOINT_PATH"])


def test_a_job_that_is_over_ends_at_once_and_saves_nothing(elastic, fit, nets):
    first, model = fit(elastic(8, per_replica=3)), nets.Net()
    version = newest()
    again = fit(elastic(8, per_replica=3), model=model)

    assert 6 == first.global_step == again.global_step
    assert version == newest()
    assert torch.equal(first.lightning_module.layer.weight, model.layer.weight)


@pytest.mark.parametrize(("num_workers", "by_hook"), [(0, False), (1, False), (1, True)])
def test_more_epochs_go_on_from_the_end_in_their_own_order(
    elastic, fit, nets, num_workers, by_hook
):
    seen = []

    class Noted(nets.Net):
        def training_step(self, batch, batch_idx):
            seen.extend(batch[0].mul(22).round().flatten().int().tolist())
            return super().training_step(batch, batch_idx)

    for epochs in (1, 3):
        callback = elastic(8)
        model = Noted()
        if by_hook:
            model.train_dataloader = lambda made=callback: made.loader(RECORDS, num_workers=1)
            fit(callback, HOOK, model, max_epochs=epochs)
        else:
            loader = callback.loader(RECORDS, num_workers=num_workers)
            fit(callback, loader, model, max_epochs=epochs)

    expected = [order(0, epoch, 0, 22, shuffle=True).tolist() for epoch in range(3)]
    assert expected == [seen[:22], seen[22:44], seen[44:]]


def test_another_batch_for_the_same_job_is_refused(elastic, fit):
    fit(elastic(8))

    with pytest.raises(UsageError, match="give batch_size=8"):
        fit(elastic(4))


def test_a_loader_that_it_did_not_make_is_refused(elastic, fit):
    with pytest.raises(UsageError, match=r"EdlCallback\.loader\(dataset\)"):
        fit(elastic(8), DataLoader(RECORDS))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"use_distributed_sampler": True}, "give use_distributed_sampler=False"),
        ({"accumulate_grad_batches": 2}, "leave accumulate_grad_batches out"),
        ({"limit_train_batches": 2}, "leave limit_train_batches"),
        ({"fast_dev_run": True}, "fast_dev_run out"),
        ({"model": "Manual"}, "only automatic optimization"),
    ],
)
def test_what_is_not_elastic_is_refused(elastic, fit, nets, arguments, words):
    if "model" in arguments:
        arguments = {"model": getattr(nets, arguments["model"])()}
    with pytest.raises(UsageError, match=words):
        fit(elastic(8), **arguments)


def test_saving_each_zero_steps_is_refused(elastic):
    with pytest.raises(UsageError, match="at least 1 step"):
        elastic(8, save_every=0)


def test_the_environment_is_that_of_the_round(elastic, monkeypatch):
    from edl.integrations.lightning import EdlEnvironment

    told = {"RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**told, "GROUP_RANK": "1", "EDL_ROUND": "4"}.items():
        monkeypatch.setenv(name, value)
    places = EdlEnvironment()
    places.validate_settings(num_devices=2, num_nodes=1)  # another node may have 3

    assert (3, 5, 1, 1) == (
        places.global_rank(),
        places.world_size(),
        places.local_rank(),
        places.node_rank(),
    )
    assert (True, True, 2) == (
        EdlEnvironment.detect(),
        places.creates_processes_externally,
        places.local_world_size,
    )


@in_turn(1)
@pytest.mark.parametrize(
    ("batch_size", "per_replica", "told"),
    [
        (8, 4, [0, 4]),  # it makes room in the midst of an epoch, and at the end of one
        (8, 8, [0, 4]),  # the batch that comes next is the last one
        (22, 22, [0]),  # and the first
    ],
)
def test_dropout_goes_on_where_it_was(
    elastic, fit, nets, tmp_path, monkeypatch, batch_size, per_replica, told
):
    class Random(nets.Net):
        told_at = -1

        def training_step(self, batch, batch_idx):
            collective.preemption().requested |= self.global_step == self.told_at
            kept = torch.nn.functional.dropout(batch[0], 0.5)
            return self.layer(kept).square().mean()

        def validation_step(self, batch, batch_idx):
            pass

    def trained(folder, told_at):
        monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path / folder))
        session.reset()
        torch.manual_seed(5)
        model = Random()
        model.told_at = told_at
        callback, checked = elastic(batch_size, per_replica), DataLoader(RECORDS, batch_size=11)
        fit(callback, model=model, checked=checked, max_epochs=3, num_sanity_val_steps=0)
        return model.layer.weight

    whole = trained("whole", told_at=-1)
    for told_at in told:
        with pytest.raises(SystemExit):
            trained("parts", told_at)

    assert torch.equal(whole, trained("parts", told_at=-1))
