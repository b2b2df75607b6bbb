"""A teacher's fingerprint: of all that decides an answer, and of nothing else.

A test's docstring says what was broken once to see it fail.
"""

import shutil
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edl.common.errors import DefinitionError
from edl.distill.teaching import Teaching, fingerprint
from edl.model_zoo import mnist_cnn
from edl.model_zoo.spec import load_definition

TEACHER = """
import torch
from torch import nn
from {nets} import scale

def teacher(width=2, gain=1.0, lazy=False):
    return nn.LazyLinear(2) if lazy else nn.Linear(width, 2)

def teach(model, features):
    from {post} import sharpen
    return sharpen(model(features))

def model(): return nn.Linear(2, 2)
def feed(records, mode): ...
def loss(outputs, labels, teacher): ...
def optimizer(): ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield a folder with a definition that imports others, which ends with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    made = tmp_path / "made"
    made.mkdir()
    (made / "student.py").write_text(TEACHER.format(nets="told_nets", post="told_post"))
    (made / "told_nets.py").write_text("scale = 1")
    (made / "told_post.py").write_text("def sharpen(x): return x")
    yield made
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def made(folder, params=None, model=None):
    """Return the fingerprint of the folder's teacher, which has the same values each time."""
    torch.manual_seed(3)
    definition = load_definition(str(folder / "student.py"), teacher_params=params)
    return fingerprint(definition, model or definition.teacher())


def test_parameters_tell_teachers_apart(folder):
    """Broken once: they are left out. What they say may stand in no value: a temperature, say."""
    found = {made(folder, params) for params in ({}, {"gain": 1.0}, {"gain": 2.0}, {"width": 2})}

    assert 4 == len(found)
    assert made(folder, {"width": 2, "gain": 1.0}) == made(folder, {"gain": 1.0, "width": 2})


@pytest.mark.parametrize("name", ["student.py", "told_nets.py", "told_post.py"])
def test_the_modules_that_a_definition_imports_tell_teachers_apart(folder, name):
    """One of them is imported at the first question."""
    before = made(folder)
    with open(folder / name, "a") as file:
        file.write("\n# another\n")

    assert before != made(folder)


def test_a_copy_of_all_of_it_elsewhere_is_the_same_teacher(folder):
    before = made(folder)
    (folder / "told_nobody.py").write_text("neither is what nobody imports")
    shutil.copytree(folder, folder.parent / "copy")
    shutil.rmtree(folder)
    del sys.modules["told_nets"]

    assert before == made(folder.parent / "copy")


def other(tensor):
    """Return a tensor that differs in its last value."""
    flat = tensor.clone().reshape(-1)
    flat[-1] = ~flat[-1] if tensor.dtype == torch.bool else flat[-1] + 1
    return flat.reshape(tensor.shape)


KINDS = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "complex64",
]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("persistent", [True, False])
def test_tensors_of_each_kind_and_shape_are_told(folder, dtype, shape, persistent):
    """Broken once: those that no checkpoint has are left out."""
    value = torch.ones(shape, dtype=getattr(torch, dtype))

    def of(tensor):
        model = nn.Module()
        model.register_buffer("scale", tensor, persistent=persistent)
        return made(folder, model=model)

    assert of(value) == of(value.clone())
    assert not value.numel() or of(value) != of(other(value))
    assert of(value) != of(torch.ones((*shape, 1), dtype=value.dtype))
    others = {"float32": torch.float64, "complex64": torch.complex128}
    assert of(value) != of(value.to(others.get(dtype, torch.float32)))


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3, 2).t(),
        torch.ones(4, 4)[::2],
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, 2, dtype=torch.complex64).conj(),
    ],
)
def test_tensors_that_lie_otherwise_are_told(folder, value):
    model = nn.Module()
    model.register_buffer("scale", value)
    before = made(folder, model=model)
    model.register_buffer("scale", 2 * value)

    assert before != made(folder, model=model)


class Own(nn.Module):
    """A module whose state is more than tensors."""

    def __init__(self, said):
        super().__init__()
        self.said = said

    def get_extra_state(self):
        return {"said": self.said, "values": (torch.ones(2), [1.5])}


def test_what_a_module_adds_to_its_state_is_told(folder):
    assert made(folder, model=Own("a")) == made(folder, model=Own("a"))
    assert made(folder, model=Own("a")) != made(folder, model=Own("b"))
    assert made(folder, model=Own(lambda: 1))  # which has no bytes


def test_a_teacher_with_batch_norm_starts_and_its_statistics_tell(tmp_path):
    """As every ResNet."""
    torch.manual_seed(3)
    save_file(mnist_cnn.model().state_dict(), tmp_path / "model.safetensors")
    definition = load_definition(
        "taught_lenet", teacher_params={"weights": str(tmp_path / "model.safetensors")}
    )
    teaching = Teaching(definition, torch.device("cpu"), replies="float32")
    model = nn.Sequential(definition.teacher(), nn.BatchNorm1d(10))
    before = fingerprint(definition, model)
    model[1].num_batches_tracked += 1

    assert 32 == len(teaching.fingerprint)
    assert before != fingerprint(definition, model)


def test_a_teacher_whose_values_come_with_the_first_batch_is_refused(folder):
    definition = load_definition(str(folder / "student.py"), teacher_params={"lazy": True})

    with pytest.raises(DefinitionError, match=r"teacher has no values for the model \(LazyLinear"):
        definition.teacher()
