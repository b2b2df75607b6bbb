"""DistillReader: what comes out is what went in, in order, with the answers behind it."""

from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

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


class Rows(Dataset):
    """A dataset of dicts, as those of transformers are."""

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, n):
        return {"image": IMAGES[n], "label": LABELS[n], "name": f"image {n}"}


def test_a_loader_of_dicts_gets_answers_under_their_names(address):
    """Broken once: KeyError 0."""
    found = list(reader(address).wrap(DataLoader(Rows(), batch_size=16)))

    assert [16, 16, 16, 2] == [len(batch["label"]) for batch in found]
    for batch in found:
        assert ["image", "label", "name", "logits"] == list(batch)
        assert torch.equal(torch.from_numpy(IMAGES)[batch["label"]], batch["image"])
        assert torch.equal(2 * batch["image"], batch["logits"])
        assert [f"image {n}" for n in batch["label"]] == batch["name"]


@pytest.mark.parametrize("kind", [dict, UserDict, OrderedDict])
def test_dicts_come_as_samples_as_lists_and_as_batches(address, kind):
    samples = [kind(image=IMAGES[n], label=LABELS[n]) for n in range(20)]
    batch = kind(image=IMAGES[:20], label=LABELS[:20])

    one = list(reader(address).set_sample_generator(lambda: samples)())
    (many,) = reader(address).set_sample_list_generator(lambda: [samples])()
    (whole,) = reader(address).set_batch_generator(lambda: [batch])()

    for n, (a, b) in enumerate(zip(one, many, strict=True)):
        assert n == a["label"] == b["label"]
        np.testing.assert_array_equal(2 * IMAGES[n], a["logits"])
        np.testing.assert_array_equal(2 * IMAGES[n], b["logits"])
    np.testing.assert_array_equal(2 * IMAGES[:20], whole["logits"])
    assert isinstance(whole["logits"], np.ndarray)


def test_a_batch_of_one_array_is_its_one_field(address):
    """Broken once: its rows are taken for its fields."""
    made = DistillReader(["image"]).set_fixed_teacher(address)
    ((image, logits),) = made.wrap([torch.from_numpy(IMAGES[:1])])

    assert torch.equal(2 * image, logits)
    with pytest.raises(UsageError, match="has 1 fields, and ins 2"):
        next(reader(address).wrap([torch.from_numpy(IMAGES[:2])]))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"picture": IMAGES}, "a batch has no 'image' of ins: its fields are picture"),
        ({"image": IMAGES, "label": 1, "logits": 2}, "has a field 'logits', as predicts has"),
        ("image", "a batch is a str: give tuples or lists of fields, or dicts by the names"),
        ({1, 2}, "a batch is a set"),
    ],
)
def test_batches_that_are_none_are_told(address, batch, said):
    with pytest.raises(UsageError, match=said):
        next(reader(address).wrap([batch]))


def test_paddles_own_idiom_works(address, capsys):
    """As its own test has it, but for the port."""
    dr = DistillReader(ins=["img", "label"], predicts=["logits"])
    dr.set_teacher_batch_size(4)
    dr.set_fixed_teacher([address])
    train_reader = dr.set_sample_list_generator(
        lambda: [8 * [(IMAGES[0], LABELS[:1])]] * 24 + [2 * [(IMAGES[0], LABELS[:1])]]
    )
    dr.print_config()

    for _ in range(3):
        found = list(train_reader())
        assert [8] * 24 + [2] == [len(batch) for batch in found]
        np.testing.assert_array_equal(2 * IMAGES[0], found[-1][-1][-1])
    printed = capsys.readouterr().out.splitlines()
    assert "------ DistillReader Configuration Arguments ------" == printed[0]
    assert {"ins: ['img', 'label']", "teacher_batch_size: 4", "distill_mode: fixed"} <= {*printed}
    assert {f"teachers: ['{address}']", "reader_type: list", "predicts: ['logits']"} <= {*printed}


def test_setters_return_the_reader(address):
    dr = DistillReader(["image"])
    for each in (
        dr.set_teacher_batch_size(4),
        dr.set_fixed_teacher(address),
        dr.set_dynamic_teacher("h:1", "lenet", 2),
        dr.set_require_max_teacher(3),
        dr.set_sample_generator(list),
        dr.set_sample_list_generator(list),
        dr.set_batch_generator(list),
    ):
        assert dr is each


def test_teachers_of_several_registries_and_at_most_so_many(capsys):
    dr = DistillReader(["image"])
    dr.set_dynamic_teacher(["h:1", "h:2"], "lenet", require_max_teacher=3)
    dr.print_config()
    dr.set_dynamic_teacher(
        discovery_servers="h:1,h:2", teacher_service_name="lenet", require_max_teacher=3
    ).print_config()

    first, second = capsys.readouterr().out.split("------ DistillReader")[1:]
    assert first == second
    for line in (
        "teachers: ['edl://h:1/lenet', 'edl://h:2/lenet']",
        "distill_mode: discover",
        "require_max_teacher: 3",
        "discovery_servers: ['h:1', 'h:2']",
        "teacher_service_name: lenet",
    ):
        assert f"\n{line}\n" in first
    with pytest.raises(UsageError, match="require_max_teacher -1: give 1 or more; 0: all"):
        dr.set_dynamic_teacher("h:1", "lenet", -1)
    with pytest.raises(UsageError, match="no registry"):
        dr.set_dynamic_teacher([], "lenet")
