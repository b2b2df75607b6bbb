"""The findings of `edl zoo check` on one batch."""

from pathlib import Path

import numpy as np
import pytest

from edl.data.reader import Columns
from edl.model_zoo.check import check_definition, check_file
from edl.model_zoo.spec import load_definition

RECORDS = Columns({"id": np.arange(4), "y": np.ones(4, np.float32)})
SOUND = """
import torch
from torch import nn
from edl.nn import SGD, Embedding, MeanSquaredError

COUNT = __import__("itertools").count()
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
    def check_source(old="", new="", records=RECORDS, strategy=""):
        assert old in SOUND
        definition = load_definition(write(SOUND.replace(old, new)))
        return check_definition(definition, records, strategy=strategy)

    return check_source


def worst(findings):
    return [(f.level, f.what) for f in findings if f.level != "ok"]


@pytest.mark.parametrize(("strategy", "sound"), [("ps", True), ("hybrid", False)])
def test_a_hybrid_job_cannot_clip_all_gradients_together(check, strategy, sound):
    findings = check("SGD(lr=0.1)", "SGD(lr=0.1, clip_norm=1.0)", strategy=strategy)

    assert worst(findings) == ([] if sound else [("error", "optimizer")])
    assert sound or "--strategy hybrid" in next(f.detail for f in findings if f.level == "error")


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
        (
            "SGD(lr=0.1)",
            "SGD(lr=0.1, nesterov=True)",
            "optimizer",
            "nesterov needs momentum above 0",
        ),
        ('features["ids"])', 'features["ids"] + 1)', "model", "forward gets other ids"),
        ('feature="ids"', 'feature="idz"', "feed", "feature='idz', but feed returns {ids"),
        (
            "SGD(lr=0.1)",
            "__import__('edl.nn').nn.ByName(SGD(), {'t': SGD(nesterov=True)})",
            "optimizer",
            "nesterov needs momentum above 0",
        ),
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
    assert "mine.py:21" in error.detail


def test_error_of_a_layer_has_the_line_that_called_it_whatever_file_that_is_in(write):
    """Also where the error is a sentence of ours, and where torch alone calls the layer."""
    layers = write(
        "from torch import nn\n"
        "class Doubled(nn.Module):\n"
        "    def forward(self, features):\n"
        "        return features.missing\n",
        "layers_of_mine.py",
    )
    ours = write(SOUND.replace('(features["ids"])', '(features["ids"].float())'))
    elsewhere = write(
        f"import sys; sys.path.insert(0, {str(Path(layers).parent)!r})\n"
        "import layers_of_mine; sys.path.pop(0)\n"
        + SOUND.replace("return Model()", "return layers_of_mine.Doubled()"),
        "elsewhere.py",
    )
    alone = write(
        SOUND.replace("return Model()", "return nn.Sequential(nn.Linear(2, 1))"), "alone.py"
    )

    def told(path):
        findings = check_definition(load_definition(path), RECORDS)
        return [f.detail for f in findings if f.level == "error"]

    assert told(ours)[0].startswith(f"{ours}:13: `return self.out(self.rows(")
    assert told(elsewhere)[0].startswith(f"{layers}:4: `return features.missing`: AttributeError")
    assert told(alone)[0].startswith(f"{alone}:14: TypeError")


@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        (', feature="ids"', "", "pulled inside the forward"),
        ('self.rows(features["ids"])', "torch.ones(4, 2)", "never asks table 't'"),
        ("nn.Linear(2, 1)", "nn.Linear(2, 1); self.idle = nn.Linear(1, 1)", "idle.weight"),
        (
            "nn.Linear(2, 1)",
            "nn.Linear(2, 1); self.e = nn.Embedding(300_000, 2).requires_grad_(False)",
            "e (Embedding) stays in the workers: its weight is frozen",
        ),
    ],
)
def test_what_works_but_is_hardly_meant_is_a_warning(check, old, new, detail):
    findings = check(old, new)

    assert worst(findings) == [("warning", "model")]
    assert any(detail in f.detail for f in findings)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("nn.Linear(2, 1)", "nn.LazyLinear(1)", "out (LazyLinear) before the first batch"),
        ("nn.Linear(2, 1)", "nn.LazyBatchNorm1d()", "out (LazyBatchNorm1d) before the first batch"),
        (
            "SGD(lr=0.1)",
            "SGD(lr=lambda v: 0.1)",
            "SGD(lr=a function): lr is a number or a schedule",
        ),
        (
            "SGD(lr=0.1)",
            "__import__('edl.nn').nn.ByName(SGD(), {'tt': SGD(0.1)})",
            "no table or parameter like 'tt'; it has out.weight, out.bias, t",
        ),
        ("SGD(lr=0.1)", "type('Mine', (SGD,), {})(0.1)", "and none of one's own: SGD"),
        (
            "super().__init__()",
            "super().__init__(); self.add_module(f'out_{next(COUNT)}', nn.Linear(1, 1))",
            "('out_0.weight' became 'out_1.weight')",
        ),
        ('Embedding("t"', 'Embedding(f"t_{next(COUNT)}"', "('table t_0' became 'table t_1')"),
        (
            "nn.Linear(2, 1)",
            "nn.Linear(2, 1 + next(COUNT))",
            "'out.weight' is float32[1, 2] of one call",
        ),
        (
            "super().__init__()",
            (
                "super().__init__(); pair = 'abba'[2 * next(COUNT) :][:2]; "
                "[self.add_module(name, nn.Linear(1, 1)) for name in pair]"
            ),
            "in another order",
        ),
        (
            "MeanSquaredError()",
            "__import__('edl.nn').nn.Accuracy('all')",
            "the threshold is a number",
        ),
        (
            "super().__init__()",
            "super().__init__(); self.e = nn.Embedding(9, 2, max_norm=1)",
            "max_norm",
        ),
        (
            "return self.out",
            "self.out.weight.detach().clamp_(-1, 1); return self.out",
            "writes to the parameter 'out.weight'",
        ),
        (
            "super().__init__()",
            "super().__init__(); self.register_parameter('w', nn.Parameter(torch.ones(9, 1)))",
            "",
        ),
        (
            "super().__init__()",
            "super().__init__(); self.register_buffer('least', torch.tensor(float('inf')))",
            "",
        ),
    ],
)
def test_what_a_job_could_not_train_is_one_sentence(check, old, new, sentence):
    errors = [f.detail for f in check(old, new) if f.level == "error"]

    assert [sentence] == [sentence for e in errors if sentence in e] if sentence else not errors


def test_a_sparse_gradient_of_a_call_is_one_sentence(check):
    findings = check(
        "    def forward(self, features):",
        "        self.w = nn.Parameter(torch.ones(9, 1))\n"
        "    def forward(self, features):\n"
        "        w = nn.functional.embedding(features['ids'], self.w, sparse=True).squeeze(1)\n"
        "        return w + self.out(self.rows(features['ids'])).squeeze(1)",
    )

    assert [("error", "model")] == worst(findings)
    assert "the gradient of 'w' is sparse" in findings[-1].detail


def test_a_least_value_that_begins_with_infinity_is_one_sentence(check):
    findings = check(
        "    def forward(self, features):",
        "        self.register_buffer('least', torch.tensor(float('inf')))\n"
        "    def forward(self, features):\n"
        "        self.least = torch.minimum(self.least, features['ids'].min().float())",
    )

    assert [("error", "model")] == worst(findings)
    assert "the buffer 'least' from inf to 0" in findings[-1].detail


def test_a_flag_that_the_forward_sets_is_told_to_be_each_workers_own(check):
    findings = check(
        "    def forward(self, features):",
        "        self.register_buffer('begun', torch.tensor(False))\n"
        "    def forward(self, features):\n"
        "        self.begun = torch.tensor(True)",
    )

    assert [("warning", "model")] == worst(findings)
    (told,) = (finding.detail for finding in findings if finding.level == "warning")
    assert "changes begun, which no float is" in told


WEIGHTS = ('torch.from_numpy(records["y"])', 'torch.from_numpy(records["y"]), records["y"] * 2')


def weighing(check, old, new):
    """Try a definition whose feed gives weights, with one more change."""
    assert old in SOUND
    return check(SOUND, SOUND.replace(*WEIGHTS).replace(old, new))


def test_weights_are_tried_with_a_loss_of_each_record(check):
    findings = weighing(check, ".square().mean()", ".square()")

    assert [] == worst(findings)
    assert "weights that are 8 in sum" in next(f.detail for f in findings if f.what == "feed")


@pytest.mark.parametrize(
    ("old", "new", "what", "sentence"),
    [
        ("def model", "def model", "loss", "return one loss for each record"),
        ("* 2", "* -2", "feed", "the weight -2.0: weights are finite and not below 0"),
        ("* 2", "[:3]", "feed", "3 weights for 4 records"),
    ],
)
def test_weights_that_do_not_fit_are_told(check, old, new, what, sentence):
    source = SOUND.replace(*WEIGHTS)
    if what == "feed":
        source = source.replace(".mean()", "").replace(old, new)

    findings = check(SOUND, source)

    assert [("error", what)] == worst(findings)
    assert sentence in next(f.detail for f in findings if f.level == "error")


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ('MeanSquaredError(of="y")', "MeanSquaredError(of='y'), and the outputs are 'output'"),
        ('ByGroup(MeanSquaredError(), by="day")', "'mse' is by 'day', and feed gives no such"),
    ],
)
def test_a_metric_of_a_name_that_is_not_there_is_told(check, metric, sentence):
    source = SOUND.replace("MeanSquaredError()", metric).replace("SGD, Em", "ByGroup, SGD, Em")

    findings = check(SOUND, source)

    assert [("error", "metrics: mse")] == worst(findings)
    assert sentence in next(f.detail for f in findings if f.level == "error")


def test_the_optimizer_is_tried_with_its_parameters(write):
    path = write(
        SOUND.replace(
            "def optimizer():\n    return SGD(lr=0.1)", "def optimizer(lr):\n    return SGD(lr)"
        )
    )

    findings = check_file(path, optimizer_params="lr=0.25")

    assert "SGD(lr=0.25" in next(f.detail for f in findings if f.what == "optimizer")
