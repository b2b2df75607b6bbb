"""ElasticTrainer's own arithmetic and its refusals; with replicas: test_trainers.py."""

from __future__ import annotations

import types

import pytest
import torch
from tools.turns import in_turn

from edl import launch
from edl.adaptive import collective, session
from edl.common.errors import UsageError
from edl.integrations.passes import Batches


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


DATA = [{"x": torch.randn(2), "labels": torch.tensor(i % 3 if i % 4 else -100)} for i in range(22)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="the extra transformers")
    pytest.importorskip("accelerate", reason="the extra transformers")
    from transformers import TrainingArguments

    from edl.integrations.transformers import ElasticTrainer

    for name in ("EDL_ROUND", "EDL_CHECKPOINT_VERSION", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path / "checkpoints"))
    monkeypatch.setattr("edl.adaptive.collective.Preemption.install", lambda self: None)
    session.reset()

    def made(data=DATA, **arguments):
        told = {"per_device_train_batch_size": 2, "use_cpu": True, "report_to": "none"}
        told |= {"disable_tqdm": True, "save_strategy": "no", "num_train_epochs": 1}
        batch = arguments.pop("batch", 8)
        settings = TrainingArguments(str(tmp_path / "out"), **{**told, **arguments})
        return ElasticTrainer(Net(), settings, train_dataset=data, global_batch_size=batch)

    yield made
    session.reset()


def gradients(trainer, monkeypatch):
    """Train; return the gradient of each step."""
    found = []

    def note(args, state, control, **kwargs):
        found.append(trainer.model.layer.weight.grad.clone())

    monkeypatch.setattr(trainer._edl, "on_pre_optimizer_step", note, raising=False)
    trainer.train()
    return found


def mean_loss(model, rows):
    batch = [DATA[row] for row in rows]
    x, labels = (torch.stack([item[name] for item in batch]) for name in ("x", "labels"))
    return model(x, labels)["loss"]


def expected(start, rows):
    """Return the gradient of the mean loss over these records."""
    model = Net()
    model.load_state_dict(start)
    mean_loss(model, rows).backward()
    return model.layer.weight.grad


def test_a_gradient_is_the_mean_over_the_labels_that_count(make, monkeypatch):
    trainer = make(max_grad_norm=0.0, train_sampling_strategy="sequential")
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    first, *_ = gradients(trainer, monkeypatch)

    assert torch.allclose(expected(start, range(8)), first, atol=1e-6)


def test_a_micro_batch_without_a_label_that_counts_is_nothing(make, monkeypatch):
    ignored = [dict(item, labels=torch.tensor(-100)) for item in DATA[2:4]]
    told = {"train_sampling_strategy": "sequential", "logging_steps": 1}
    trainer = make(DATA[:2] + ignored + DATA[4:], max_grad_norm=0.0, **told)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    first, *_ = gradients(trainer, monkeypatch)

    rows = [0, 1, 4, 5, 6, 7]
    assert torch.allclose(expected(start, rows), first, atol=1e-6)
    model = Net()
    model.load_state_dict(start)
    logged = trainer.state.log_history[0]["loss"]
    assert pytest.approx(mean_loss(model, rows).item(), abs=1e-4) == logged


def test_a_record_that_is_repeated_for_want_of_others_does_not_count(make):
    trainer = make()
    trainer._batches = Batches(8, 8)
    trainer.state.global_step = 1  # the second step, which has the ninth record only
    factors = []
    for rank in range(2):
        trainer._edl._replicas = types.SimpleNamespace(rank=rank, replicas=2)
        trainer.train_dataset = DATA[1:10]
        trainer.get_train_dataloader()
        batch = {"labels": torch.tensor([1])}
        factors += trainer._weigh([batch], torch.device("cpu"))

    assert [0, 2] == [float(factor) for factor in factors]


def test_without_labels_micro_batches_weigh_by_their_records(make):
    trainer = make()
    trainer._batches = Batches(9, 2)
    trainer.train_dataset = DATA[:9]
    trainer._edl._replicas = types.SimpleNamespace(rank=0, replicas=1)
    trainer.get_train_dataloader()

    records = [1, 2, 2, 2, 2]
    factors = trainer._weigh([{}] * len(records), torch.device("cpu"))
    assert pytest.approx([number / 9 for number in records]) == factors


@in_turn(1)
def test_the_job_keeps_the_batch_that_its_first_round_made(make):
    first = make(batch=None, gradient_accumulation_steps=3)
    first.train()
    later = make(batch=None, per_device_train_batch_size=1)
    later.train()

    assert (6, 6) == (first.state.global_step + 2, later._batches.total)
    assert 6 == later.args.gradient_accumulation_steps
    assert first.state.global_step == later.state.global_step


@in_turn(3)
def test_a_job_that_has_reached_its_last_step_makes_no_other(make):
    make(max_steps=2).train()
    again = make(max_steps=2)
    again.train()

    assert 2 == again.state.global_step


def test_what_is_due_at_the_end_of_an_epoch_comes_before_the_room_is_made(make):
    from edl.integrations.transformers import EdlCallback

    asked = EdlCallback()
    asked._replicas = types.SimpleNamespace(stepped=lambda records, left: True)
    args = types.SimpleNamespace(
        train_batch_size=2, gradient_accumulation_steps=1, world_size=1, device="cpu"
    )
    control = types.SimpleNamespace(should_save=False)
    state = types.SimpleNamespace(max_steps=9, global_step=3, epoch=1.0)
    asked.on_step_end(args, state, control)
    at_the_step = control.should_save
    asked.on_epoch_end(args, state, control)

    assert (False, True) == (at_the_step, control.should_save)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size.*the most that fits"),
        ({"train_sampling_strategy": "group_by_length"}, "random and sequential"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
    ],
)
def test_what_is_not_elastic_is_refused(make, arguments, words):
    with pytest.raises(UsageError, match=words):
        make(**arguments)


def test_a_checkpoint_to_resume_from_is_refused(make):
    with pytest.raises(UsageError, match="leave out resume_from_checkpoint"):
        make().train(resume_from_checkpoint=True)


def test_a_stream_is_refused(make):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from DATA

    with pytest.raises(UsageError, match="a dataset with a length"):
        make(Stream(), max_steps=3).train()


def test_a_plain_trainer_with_the_callback_saves_in_its_own_way_and_makes_room(make, tmp_path):
    from transformers import Trainer, TrainingArguments

    from edl.integrations.transformers import EdlCallback

    settings = TrainingArguments(
        str(tmp_path / "own"), report_to="none", disable_tqdm=True, use_cpu=True, max_steps=9
    )
    collective.preemption().requested = True
    with pytest.raises(SystemExit) as left:
        Trainer(Net(), settings, train_dataset=DATA, callbacks=[EdlCallback()]).train()

    assert launch.DRAINED == left.value.code
    assert ["checkpoint-2"] == [path.name for path in (tmp_path / "own").iterdir()]


@in_turn(0)
def test_dropout_goes_on_where_it_was(make, tmp_path, monkeypatch):
    def trained(folder, told_at):
        monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path / folder))
        session.reset()
        torch.manual_seed(5)
        trainer = make(num_train_epochs=3)
        trainer.model.layer = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 3))
        told = types.SimpleNamespace(step=told_at)

        def tell(args, state, control, **kwargs):
            collective.preemption().requested |= state.global_step == told.step

        monkeypatch.setattr(trainer._edl, "on_pre_optimizer_step", tell, raising=False)
        trainer.train()
        return trainer.model.state_dict()["layer.1.weight"]

    whole = trained("whole", told_at=-1)
    for told_at in (0, 4):  # it makes room in the midst of an epoch, and at the end of one
        with pytest.raises(SystemExit):
            trained("parts", told_at)

    assert torch.equal(whole, trained("parts", told_at=-1))
