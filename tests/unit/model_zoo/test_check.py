"""What `edl zoo check` finds on one batch."""

import numpy as np
import pytest

from edl.data.reader import Columns
from edl.model_zoo.check import check_definition
from edl.model_zoo.spec import load_definition

RECORDS = Columns({"id": np.arange(4), "y": np.ones(4, np.float32)})
SOUND = """
import torch
from torch import nn
from edl.nn import SGD, Embedding, MeanSquaredError

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Embedding("t", 2, feature="ids")
        self.out = nn.Linear(2, 1)
    def forward(self, features):
        return self.out(self.rows(features["ids"])).squeeze(1)
def model():
    return Model()
def loss(outputs, labels):
    return (outputs - labels).square().mean()
def optimizer():
    return SGD(lr=0.1)
def feed(records, mode):
    return {"ids": torch.from_numpy(records["id"])}, torch.from_numpy(records["y"])
def metrics():
    return {"mse": MeanSquaredError()}
"""


@pytest.fixture
def check(write):
    def check_source(old="", new="", records=RECORDS):
        assert old in SOUND
        return check_definition(load_definition(write(SOUND.replace(old, new))), records)

    return check_source


def worst(findings):
    return [(f.level, f.what) for f in findings if f.level != "ok"]


def test_sound_definition_has_only_good_findings(check):
    findings = check()

    tried = ["model", "optimizer", "metrics", "feed", "forward", "loss", "evaluate", "predict"]
    assert [(f.level, f.what) for f in findings] == [("ok", what) for what in tried]


def test_without_records_feed_is_told_to_be_untried(check):
    assert worst(check(records=None)) == [("warning", "feed")]


@pytest.mark.parametrize(
    ("old", "new", "what", "detail"),
    [
        ('records["id"]', 'records["idd"]', "feed", "no column 'idd'; there are id, y"),
        ("self.out(", "self.aut(", "model", "has no attribute 'aut'"),
        (".square().mean()", ".square()", "loss", "float32[4] instead of a scalar"),
        (".square().mean()", ".mean().detach()", "loss", "nothing would be learnt"),
        (".square().mean()", ".mean() / 0", "loss", "on the first batch"),
        ("SGD(lr=0.1)", "'sgd'", "optimizer", "no optimizer of edl.nn"),
        ('features["ids"])', 'features["ids"] + 1)', "model", "forward gets other ids"),
        ('feature="ids"', 'feature="idz"', "feed", "feature='idz', but feed returns {ids"),
        ("MeanSquaredError()", "1", "metrics", "is no metric"),
    ],
)
def test_mistake_is_one_error_that_names_the_function(check, old, new, what, detail):
    errors = [f for f in check(old, new) if f.level == "error"]

    assert [f.what for f in errors] == [what]
    assert detail in errors[0].detail


def test_error_of_the_users_code_has_its_line(check):
    (error,) = [f for f in check('records["id"]', 'records["idd"]') if f.level == "error"]

    assert 'return {"ids": torch.from_numpy(records["idd"])}' in error.detail
    assert "mine.py:20" in error.detail


@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        (', feature="ids"', "", "pulled inside the forward"),
        ('self.rows(features["ids"])', "torch.ones(4, 2)", "never asks table 't'"),
        ("nn.Linear(2, 1)", "nn.Linear(2, 1); self.idle = nn.Linear(1, 1)", "idle.weight"),
    ],
)
def test_what_works_but_is_hardly_meant_is_a_warning(check, old, new, detail):
    findings = check(old, new)

    assert worst(findings) == [("warning", "model")]
    assert any(detail in f.detail for f in findings)
