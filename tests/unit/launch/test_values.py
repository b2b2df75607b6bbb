"""The values of a script's state: what comes back as it was, and what is refused by its place."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch

from edl.common.errors import UsageError
from edl.launch import load, save
from edl.launch.state import is_empty

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path))
    for name in ("EDL_ROUND", "EDL_CHECKPOINT_VERSION", "EDL_NUM_RESTARTS", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Versioned(torch.nn.Module):
    """A module that reads a state of its first version otherwise."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        self.loaded_version = local_metadata.get("version")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_the_versions_of_modules_are_kept(folder):
    model = torch.nn.Sequential(Versioned(), torch.nn.BatchNorm1d(2))
    save({"models": [model]})
    (found,) = load().state["models"]
    other = torch.nn.Sequential(Versioned(), torch.nn.BatchNorm1d(2))
    other.load_state_dict(found)

    assert model.state_dict()._metadata == found._metadata
    assert isinstance(found, OrderedDict)
    assert 2 == other[0].loaded_version


@pytest.mark.parametrize(
    "array",
    [
        np.array([["a", "bcd"], ["", "Ä"]]),
        np.array("one"),
        np.array([], dtype="<U3"),
        np.array(2.5),
        np.arange(3, dtype=">i4"),
        np.arange(6).reshape(2, 3)[:, ::-2],
        np.array([1 + 2j], dtype=np.complex64),
    ],
    ids=str,
)
def test_an_array_comes_back_with_its_shape_and_values(folder, array):
    save({"a": array})

    found = load().state["a"]
    assert array.dtype.newbyteorder("=") == found.dtype
    assert (array.shape, array.tolist()) == (found.shape, found.tolist())


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.eye(2).to_sparse(), r"layout sparse_coo, .*to_dense\(\)"),
        (lambda: torch.eye(2).to_sparse_csr(), r"layout sparse_csr, .*to_dense\(\)"),
        (quantized, r"a quantized tensor, .*dequantize\(\)"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
            r"a nested .*unbind\(\)",
        ),
        (lambda: torch.ones(2, device="meta"), "on the device meta"),
        (lambda: torch.ones(2, dtype=torch.complex128), r"a tensor of torch\.complex128"),
        (lambda: torch.nn.LazyLinear(2).weight, "not initialised yet"),
        (lambda: np.array([{}, None]), r"ndarray of object, .*tolist\(\)"),
        (lambda: np.array([b"a"]), "an array of numbers or texts"),
        (lambda: np.array(["2024-01-01"], "M8[D]"), "an array of numbers or texts"),
        (lambda: np.ma.masked_array([1, 2], [0, 1]), "MaskedArray of int64"),
        (lambda: np.longdouble(1), "longdouble"),
        (lambda: np.datetime64("2024-01-01"), "date, which cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place_and_what_to_do(folder, make, why):
    with pytest.raises(UsageError, match=rf"^state\.deep\.1 is .*{why}"):
        save({"deep": [0, make()]})
    assert [] == list(folder.iterdir())


def test_a_round_that_finds_nothing_says_so_but_for_the_first(folder, monkeypatch, caplog):
    load()
    first = caplog.text
    monkeypatch.setenv("EDL_NUM_RESTARTS", "2")
    load()

    assert "" == first
    assert f"nothing was saved before restart 2 of this job in {folder}" in caplog.text


def test_whether_anything_was_saved_is_known_where_the_folder_is(folder):
    at_first = is_empty(str(folder)), is_empty(str(folder / "not made yet"))
    save({"x": 1})

    assert (True, True) == at_first
    assert not is_empty(str(folder))
    assert is_empty(str(folder / "no volume" / "here")) is None
    assert is_empty("memory://launch/c") is None
