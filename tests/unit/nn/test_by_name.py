"""Several optimizers by name: which one a name has, and what is refused."""

import dataclasses
import json

import pytest
import torch

from edl.common.errors import DefinitionError
from edl.nn import SGD, Adagrad, Adam, ByName, Embedding, MultiStep
from edl.nn.by_name import from_dict, to_dict
from edl.nn.local import torch_optimizer
from edl.nn.model_spec import ModelSpec
from edl.worker.model import model_spec

SEVERAL = ByName(Adam(), {"users": Adagrad(0.1), "deep.*": SGD(MultiStep(0.1, [5]))})


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = Embedding("users", 4)
        self.deep = torch.nn.Linear(4, 4)
        self.out = torch.nn.Linear(4, 1)


def test_the_first_pattern_that_fits_decides():
    by_name = ByName(Adam(), {"deep.bias": Adagrad(), "deep.*": SGD()})

    kinds = [type(by_name.of(name)) for name in ("deep.bias", "deep.weight", "out.deep")]
    assert [Adagrad, SGD, Adam] == kinds


def test_it_survives_json():
    assert SEVERAL == from_dict(json.loads(json.dumps(to_dict(SEVERAL))))


def test_a_model_says_which_pattern_is_of_nothing():
    model_spec(Model(), SEVERAL, 0)

    with pytest.raises(DefinitionError, match=r"like 'item'; it has deep\.weight, .*users"):
        model_spec(Model(), ByName(Adam(), {"item": SGD()}), 0)


def test_all_reduce_takes_tables_by_name_and_one_optimizer_of_the_rest():
    tables_only = ByName(Adam(), {"users": Adagrad(0.1)})

    assert Adam() == model_spec(Model(), tables_only, 0).dense_optimizer
    with pytest.raises(DefinitionError, match=r"deep\.weight and out\.weight .*--strategy ps"):
        _ = model_spec(Model(), SEVERAL, 0).dense_optimizer


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ByName("Adam"),
        lambda: ByName(Adam(), {"a": torch.optim.Adam}),
        lambda: ByName(SEVERAL, {}),
        lambda: ByName(Adam(), {3: Adam()}),
        lambda: ByName(Adam(), {"users": SGD(clip_norm=1.0)}),
        lambda: SGD(clip_norm=-1.0),
        lambda: torch_optimizer(SEVERAL, []),
    ],
)
def test_what_is_no_optimizer_is_refused(wrong):
    with pytest.raises(DefinitionError):
        wrong()


@pytest.mark.parametrize("patterns", [["ab"], [["a"]], [["a", "b"]], [["a", {}]], 3, None])
def test_a_strangers_patterns_are_no_model(patterns):
    values = json.loads(dataclasses.replace(model_spec(Model(), SEVERAL, 0)).to_json())
    values["optimizer"]["patterns"] = patterns

    with pytest.raises(ValueError, match="no optimizer or tables"):
        ModelSpec.from_json(json.dumps(values))
