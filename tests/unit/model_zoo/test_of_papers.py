"""Definitions that follow a paper, against its own statements, or numpy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from edl.data.reader import Columns, take
from edl.model_zoo.check import check_definition
from edl.model_zoo.din import DIN, ActivationUnit, Dice
from edl.model_zoo.spec import load_definition
from edl.nn import PADDING, LocalRows, attach, hash64

RECORDS = 24


def rated():
    """Return records as ml-100k-histories has them."""
    rng = np.random.default_rng(0)
    histories = {name: rng.integers(1, 1683, (RECORDS, 50)) for name in ("liked", "disliked")}
    for history in histories.values():
        history[np.arange(50) >= rng.integers(0, 50, RECORDS)[:, None]] = PADDING
    genres = rng.integers(1, 20, (RECORDS, 6))
    genres[:, 3:] = PADDING
    return Columns(
        {
            "label": rng.integers(0, 2, RECORDS),
            "user_id": rng.integers(1, 9, RECORDS),
            "item_id": rng.integers(1, 1683, RECORDS),
            "item_share": rng.random(RECORDS).astype(np.float32) / 100,
            "age": rng.integers(10, 70, RECORDS),
            "release_year": rng.integers(1920, 1999, RECORDS),
            "gender": rng.integers(0, 2, RECORDS),
            "occupation": rng.integers(0, 20, RECORDS),
            "genres": genres,
            **{name: history.astype(np.int16) for name, history in histories.items()},
        }
    )


def texts():
    rng = np.random.default_rng(0)
    windows = rng.integers(32, 127, (4, 257)).astype(np.uint8)
    return Columns({"text": windows[:, :-1], "label": windows[:, 1:]})


@pytest.fixture(autouse=True)
def _one_thread():
    """Let small products not wait for other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(name, **params):
    """Return a definition and its model, with rows of its own."""
    torch.manual_seed(0)
    definition = load_definition(name, params=params)
    model = definition.model()
    attach(model, LocalRows())
    return definition, model


@pytest.mark.parametrize(
    ("name", "records"), [("two_tower", rated), ("din", rated), ("gpt", texts)]
)
def test_check_finds_nothing_wrong_with_a_definition_of_sequences(name, records):
    findings = check_definition(load_definition(name), records())

    assert [f for f in findings if f.level != "ok"] == []
    assert {"feed", "loss", "evaluate", "predict"} <= {f.what for f in findings}


@pytest.mark.parametrize(
    ("name", "params", "data"),
    [
        ("mmoe", {}, "census"),
        ("mobilenet_v2", {"width": 0.125}, "digits"),
        ("resnet50", {"width": 8}, "digits"),
    ],
)
def test_check_finds_nothing_wrong_with_a_definition_of_a_paper(name, params, data, dataset):
    records, _ = dataset(data)
    definition = load_definition(name, params=params)

    findings = check_definition(definition, take(records, slice(0, 8)))

    assert [f for f in findings if f.level != "ok"] == []


# -- two towers


def test_the_batch_softmax_is_that_of_numpy():
    """Each like against the other likes of the batch, less the log of each item's share."""
    definition, model = made("two_tower")
    features, labels = definition.feed(rated(), "train")
    labels["item"][3] = labels["item"][5]  # a film that two records like
    labels["liked"][[3, 5]] = True
    logits = model(features)
    found = definition.loss(logits, labels)

    scores = logits.detach().numpy().astype(np.float64) - labels["log_share"].numpy()
    liked, item = labels["liked"].numpy(), labels["item"].numpy()
    of_each = []
    for row in np.flatnonzero(liked):
        against = liked & ((item != item[row]) | (np.arange(RECORDS) == row))
        of_each.append(np.logaddexp.reduce(scores[row][against]) - scores[row][row])
    assert float(found.detach()) == pytest.approx(np.mean(of_each), rel=1e-5)


def test_a_batch_without_a_like_has_no_loss_and_no_gradient():
    definition, model = made("two_tower")
    features, labels = definition.feed(rated(), "train")
    labels["liked"][:] = False
    found = definition.loss(model(features), labels)
    found.backward()

    assert float(found.detach()) == 0.0
    assert all(not p.grad.any() for p in model.parameters())


def test_all_items_are_ranked_but_those_that_the_user_has_rated():
    definition, model = made("two_tower")
    records = rated()
    features, places = definition.feed(records, "evaluate")
    scores = model.eval()(features)

    assert (RECORDS, 1682) == tuple(scores.shape)
    for row in range(RECORDS):
        known = {int(film) for name in ("liked", "disliked") for film in records[name][row]}
        hidden = set((np.flatnonzero(np.isinf(scores[row].detach().numpy())) + 1).tolist())
        assert known - {PADDING} == hidden
    expected = np.where(records["label"] == 1, records["item_id"] - 1, -1)
    assert expected.tolist() == places.tolist()
    # A record's own film has the score that it has in training.
    trained = model(definition.feed(records, "train")[0])
    row = next(n for n in range(RECORDS) if torch.isfinite(scores[n, records["item_id"][n] - 1]))
    assert float(scores[row, records["item_id"][row] - 1].detach()) == pytest.approx(
        float(trained[row, row].detach()), rel=1e-4
    )


# -- DIN


def test_dice_is_the_step_of_the_paper():
    """f(s) = p(s) s + (1 - p(s)) alpha s, p a sigmoid of s normalized over the batch."""
    x = torch.randn(64, 3) * 2 + 1
    dice = Dice(3)
    nn.init.constant_(dice.part, 0.25)
    found = dice(x).detach().numpy()

    s = x.numpy().astype(np.float64)
    p = 1 / (1 + np.exp(-(s - s.mean(0)) / np.sqrt(s.var(0) + 1e-5)))
    np.testing.assert_allclose(found, p * s + (1 - p) * 0.25 * s, rtol=1e-4, atol=1e-5)


def test_an_interest_is_the_sum_of_weighted_films_and_no_softmax():
    torch.manual_seed(0)
    model = DIN(4, 8, True)
    history, item = torch.randn(2, 5, 4), torch.randn(2, 4)
    history[:, 3:] = 0.0  # rows of PADDING are zeros
    ids = torch.tensor([[1, 2, 3, PADDING, PADDING]] * 2)
    unit: ActivationUnit = model.units["liked"]
    found = model._interest("liked", history, item, ids)

    expected = torch.zeros(2, 4)
    for film in range(3):
        both = [history[:, film], history[:, film] - item, history[:, film] * item, item]
        expected += unit.layers(torch.cat(both, 1)) * history[:, film]
    torch.testing.assert_close(found, expected)


def test_places_of_a_history_that_are_empty_tell_nothing():
    definition, model = made("din")
    records = rated()
    features, _ = definition.feed(records, "predict")
    whole = model.eval()(features)
    longest = int((records["liked"] != PADDING).sum(1).max())
    features["liked"] = features["liked"][:, :longest]

    torch.testing.assert_close(model(features), whole)
    assert (features["item"] == torch.from_numpy(hash64("item", records["item_id"]))).all()


# -- MMoE


def test_each_task_mixes_the_experts_by_its_own_gate(dataset):
    records, _ = dataset("census")
    definition, model = made("mmoe")
    features, labels = definition.feed(take(records, slice(0, 16)), "train")
    outputs = model(features)

    x = torch.cat([model.rows(features["ids"]).flatten(1), features["numbers"]], dim=1)
    for task in ("income", "never_married"):
        weights = torch.softmax(x @ model.gates[task].weight.T, dim=1)
        mixed = sum(weights[:, [n]] * expert(x) for n, expert in enumerate(model.experts))
        torch.testing.assert_close(outputs[task], model.towers[task](mixed).squeeze(1))
    expected = sum(
        functional.binary_cross_entropy_with_logits(outputs[task], labels[task]) for task in labels
    )
    torch.testing.assert_close(definition.loss(outputs, labels), expected)
    assert "marital_status" not in str(features.keys())


# -- GPT


def test_a_byte_sees_those_before_it_and_none_after():
    definition, model = made("gpt")
    text, _ = definition.feed(texts(), "predict")
    before = model.eval()(text)
    text[:, 100] = (text[:, 100] + 1) % 256
    after = model(text)

    torch.testing.assert_close(after[:, :100], before[:, :100])
    assert not torch.equal(after[:, 100], before[:, 100])
    assert not torch.equal(after[:, 200], before[:, 200])


def test_the_output_layer_is_the_embedding():
    _, model = made("gpt", dim=32, layers=1)
    assert not [name for name, _ in model.named_parameters() if "out" in name]

    text = torch.randint(0, 256, (2, 8))
    functional.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()

    assert model.bytes.weight.grad.abs().sum(1).gt(0).all()  # also of bytes that are not read


# -- convolutions


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 25_557_032),  # torchvision's resnet50
        ("mobilenet_v2", 3_504_872),  # torchvision's mobilenet_v2
    ],
)
def test_of_a_thousand_classes_a_network_has_the_known_parameters(name, parameters):
    _, model = made(name, classes=1000, channels=3)

    assert parameters == sum(p.numel() for p in model.parameters())


def test_images_below_32_pixels_are_scaled_up():
    definition = load_definition("resnet50")
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8) % 17
    features, _ = definition.feed(Columns({"image": image, "label": np.zeros(1)}), "train")

    assert (1, 1, 32, 32) == tuple(features.shape)
    assert float(features.mean()) == pytest.approx(image.mean() / 16, rel=1e-4)
