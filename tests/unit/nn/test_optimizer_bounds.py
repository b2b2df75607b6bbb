"""Optimizer specs of a definition are refused where torch refuses them, but for SGD's rate."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import DefinitionError
from edl.model_zoo.spec import Definition
from edl.nn import optimizers
from edl.nn.by_name import ByName
from edl.nn.schedules import Cosine, Warmup

pytestmark = pytest.mark.fast

OF_TORCH = sorted(set(optimizers.OPTIMIZERS) & set(dir(torch.optim)))
NUMBERS = st.sampled_from([-1.0, -1e-9, 0.0, 1e-9, 0.5, 0.999, 1.0, 1.5])


def is_refused(spec) -> bool:
    try:
        spec.check()
    except DefinitionError:
        return True
    return False


@given(st.sampled_from(OF_TORCH), st.data())
def test_what_torch_refuses_is_refused(name, data):
    kind = optimizers.OPTIMIZERS[name]
    numbers = [
        f.name for f in dataclasses.fields(kind) if isinstance(f.default, float) and f.name != "lr"
    ]
    ours = [name for name in numbers if not name.startswith("clip_")]
    given = {name: data.draw(NUMBERS, name) for name in data.draw(st.sets(st.sampled_from(ours)))}
    if name == "SGD":
        given["nesterov"] = data.draw(st.booleans())
    try:
        getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **given)
        expected = given.get("alpha", 0.0) > 1  # torch takes it, and its mean of squares explodes
    except ValueError:
        expected = True

    assert expected == is_refused(kind(lr=0.1, **given)), given


@pytest.mark.parametrize("lr", [-0.1, Warmup(-0.1, 5, start_factor=0.0), Cosine(-0.1, 10)])
def test_a_rate_below_0_is_sgds_alone(lr):
    for kind in optimizers.OPTIMIZERS.values():
        assert is_refused(kind(lr=lr)) == (kind is not optimizers.SGD), kind

    assert not any(is_refused(kind(lr=0.0)) for kind in optimizers.OPTIMIZERS.values())


def test_a_definition_is_told_which_number_is_wrong_and_what_it_may_be():
    class Module:
        __name__ = "it"
        optimizer = staticmethod(
            lambda: ByName(optimizers.SGD(lr=0.1), {"a": optimizers.RMSprop(alpha=2)})
        )

    found = Definition("it", "it.py", "", Module, {}, "model", {})

    with pytest.raises(DefinitionError, match="RMSprop: alpha is from 0 to 1, not 2"):
        found.optimizer()


def test_a_spec_that_was_written_is_read_though_it_is_refused_today():
    spec = optimizers.Adam(lr=0.1, eps=-1.0)

    assert spec == optimizers.from_dict(optimizers.to_dict(spec))
    assert math.isfinite(spec.eps)
    with pytest.raises(DefinitionError, match="Adam: eps is 0 or more, not -1"):
        spec.check()
