"""DistillReader: what comes out is what went in, in order, with the answers behind it."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from edl.common.errors import UsageError
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.frames import Part
from edl.distill.server import Teacher
from edl.registry.identity import VARIABLE

IDENTITY = Identity("the teachers' token")
IMAGES = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
LABELS = np.arange(50)


@pytest.fixture
def address(monkeypatch):
    """Yield the address of a teacher whose logits are twice the features."""
    monkeypatch.setenv(VARIABLE, IDENTITY.to_variable())
    teacher = Teacher(identity=IDENTITY)
    teacher.begin(lambda parts, _rows: [Part("/logits", 2 * parts[0].values)], {})
    yield f"127.0.0.1:{teacher.listening.tcp_port}"
    teacher.close()


def reader(address, **options):
    made = DistillReader(["image", "label"], ["logits"], **options)
    made.set_fixed_teacher(address)
    return made


def test_samples_come_out_one_by_one(address):
    it = reader(address)
    it.set_teacher_batch_size(7)
    it.set_sample_generator(lambda: zip(IMAGES, LABELS, strict=True))

    found = list(it())

    assert [int(label) for _, label, _ in found] == [*LABELS]
    for image, label, logits in found:
        np.testing.assert_array_equal(IMAGES[label], image)
        np.testing.assert_array_equal(2 * image, logits)


def test_lists_of_samples_keep_their_length(address):
    it = reader(address)
    lists = [[(IMAGES[n], LABELS[n]) for n in range(a, b)] for a, b in ((0, 1), (1, 9), (9, 50))]
    it.set_sample_list_generator(lambda: lists)

    found = list(it())

    assert [1, 8, 41] == [len(each) for each in found]
    for image, label, logits in (sample for each in found for sample in each):
        np.testing.assert_array_equal(IMAGES[label], image)
        np.testing.assert_array_equal(2 * image, logits)


@pytest.mark.parametrize("epochs", [2])
def test_batches_of_arrays_keep_theirs(address, epochs):
    it = reader(address)
    it.set_batch_generator(
        lambda: ((IMAGES[n : n + 8], LABELS[n : n + 8]) for n in range(0, 50, 8))
    )
    for _ in range(epochs):
        images, labels, logits = map(np.concatenate, zip(*it(), strict=True))
        np.testing.assert_array_equal(IMAGES, images)
        np.testing.assert_array_equal(LABELS, labels)
        np.testing.assert_array_equal(2 * IMAGES, logits)


def test_a_dataloader_of_torch_gets_teachers_in_a_line(address):
    data = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    loader = DataLoader(data, batch_size=16, shuffle=True)

    found = list(reader(address).wrap(loader))

    assert [16, 16, 16, 2] == [len(label) for _, label, _ in found]
    for image, label, logits in found:
        assert torch.equal(torch.from_numpy(IMAGES)[label], image)
        assert torch.equal(2 * image, logits)


def test_without_teachers_the_answers_are_none_where_the_rules_say_so(address):
    closed = "127.0.0.1:1"
    it = reader(closed, rules=Rules(wait_s=0.2, without="hard_labels"))
    it.set_batch_generator(lambda: [(IMAGES, LABELS)])

    ((_, _, logits),) = it()

    assert logits is None


def test_mistakes_are_told(address):
    with pytest.raises(UsageError, match="feeds has 'picture'"):
        DistillReader(["image"], feeds=["picture"])
    with pytest.raises(UsageError, match="nothing to read"):
        next(reader(address)())
    with pytest.raises(UsageError, match="no teachers"):
        next(DistillReader(["image"]).wrap([(IMAGES,)]))
    with pytest.raises(UsageError, match="has 1 fields, and ins 2: image, label"):
        next(reader(address).wrap([(IMAGES,)]))
    it = DistillReader(["image", "label"], ["probabilities"])
    it.set_fixed_teacher([address])
    with pytest.raises(UsageError, match="answer logits, and predicts asks for probabilities"):
        next(it.wrap([(IMAGES, LABELS)]))
