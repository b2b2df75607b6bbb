"""The quick definitions reach their gates; every built-in one is sound on a batch of real data."""

import numpy as np
import pytest
from tools.turns import some

from edl.data.reader import Columns, take
from edl.model_zoo.check import check_definition
from edl.model_zoo.spec import load_definition


@pytest.mark.parametrize(
    ("name", "data", "epochs", "batch", "gates"),
    some(
        [
            pytest.param("iris", "iris", 40, 16, {"accuracy": 0.93}),
            pytest.param("mnist_cnn", "digits", 20, 32, {"accuracy": 0.98}),
            pytest.param("census_wide_deep", "census", 1, 128, {"auc": 0.90, "accuracy": 0.845}),
        ],
        parts=3,
    ),
)
def test_definition_reaches_its_gate(name, data, epochs, batch, gates, train, dataset):
    reached = train(load_definition(name), *dataset(data), epochs, batch)

    assert {metric: reached[metric] >= gate for metric, gate in gates.items()} == dict.fromkeys(
        gates, True
    ), reached


def made_texts(records: int = 200) -> Columns:
    """Two classes of five words each, among noise: what a small transformer must tell apart."""
    rng = np.random.default_rng(0)
    told = np.array(
        [["goal", "match", "team", "coach", "league"], ["tax", "vote", "law", "bill", "mp"]]
    )
    labels = rng.integers(0, 2, records)
    words = [
        rng.permutation(
            [*rng.choice(told[label], 2), *rng.choice(["the", "one", "day", "said"], 6)]
        )
        for label in labels
    ]
    texts = np.array([" ".join(line) for line in words], dtype=object)
    return Columns({"text": texts, "label": labels})


def test_text_transformer_learns_a_made_language(train):
    texts = made_texts()
    definition = load_definition("text_transformer", params={"classes": 2, "dim": 16})

    reached = train(definition, take(texts, slice(0, 160)), take(texts, slice(160, None)), 5, 16)

    assert reached["accuracy"] >= 0.95


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("iris", "iris"),
        ("mnist_cnn", "digits"),
        ("resnet20", "digits"),
        ("census_wide_deep", "census"),
        ("deepfm", "nycflights13-small"),
        ("dcn_v2", "nycflights13-small"),
    ],
)
def test_check_finds_nothing_wrong_with_a_built_in_definition(name, data, dataset):
    records, _ = dataset(data)

    findings = check_definition(load_definition(name), take(records, slice(0, 32)))

    assert [f for f in findings if f.level != "ok"] == []
    assert {"feed", "loss", "evaluate", "predict"} <= {f.what for f in findings}


def test_check_finds_nothing_wrong_with_the_text_transformer():
    findings = check_definition(
        load_definition("text_transformer"), take(made_texts(), slice(0, 8))
    )

    assert [f for f in findings if f.level != "ok"] == []


def test_text_labels_may_be_names_of_topics_and_texts_may_be_empty():
    records = Columns(
        {"text": np.array(["", "9 goals"], object), "label": np.array(["tech", "sports"])}
    )
    definition = load_definition("text_transformer")
    features, labels = definition.feed(records, "train")

    assert labels.tolist() == [4, 3]
    assert features["ids"].shape == (2, 2)
    assert (features["ids"] == -1).tolist() == [[False, True], [False, False]]
