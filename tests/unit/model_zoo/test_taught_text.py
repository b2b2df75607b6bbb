"""A text student and its teacher: few labels, a made language, and a stand-in for transformers."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from edl.common.errors import DefinitionError, UsageError
from edl.data.reader import Columns, take
from edl.model_zoo import taught_text, text_head
from edl.model_zoo.check import check_definition
from edl.model_zoo.spec import load_definition

TOPICS, OWN = 3, 20  # each topic has its own words


class Network(nn.Module):
    """A vector for each token, by its id."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(512, 8)

    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(last_hidden_state=self.rows(input_ids))


def cut(texts, truncation, max_length, padding, return_tensors):
    words = [[1 + sum(word.encode()) % 511 for word in t.split()][:max_length] for t in texts]
    longest = max(map(len, words))
    ids = torch.tensor([w + [0] * (longest - len(w)) for w in words])
    kept = torch.tensor([[1] * len(w) + [0] * (longest - len(w)) for w in words])
    return {"input_ids": ids, "attention_mask": kept}


@pytest.fixture
def transformers(monkeypatch):
    """Have a package transformers whose encoder is the mean of random vectors of words."""

    def loads(made):
        return SimpleNamespace(from_pretrained=lambda folder, local_files_only: made)

    fake = SimpleNamespace(
        AutoTokenizer=loads(cut),
        AutoModel=loads(Network()),
        utils=SimpleNamespace(logging=SimpleNamespace(disable_progress_bar=lambda: None)),
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)


def made_texts(records=300, seed=0):
    """Return texts of 8 words, of which 4 are of the topic, and labels of topics."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, TOPICS, records)
    lines = [
        " ".join(
            [f"t{'abc'[label]}{'x' * n}" for n in rng.integers(1, OWN, 4)]
            + [f"of{'y' * n}" for n in rng.integers(1, OWN, 4)]
        ).replace("tc", "sc")
        for label in labels
    ]
    return Columns({"text": np.array(lines, object), "label": labels})


def learn(records, answers, test, epochs=4):
    """Train a student on records by a loop of plain torch; return its accuracy."""
    torch.set_num_threads(1)
    definition = load_definition("taught_text", params={"classes": TOPICS})
    student = definition.model()
    search = torch.optim.Adam(student.parameters(), lr=definition.optimizer().lr)
    features, labels = definition.feed(records, "train")
    for epoch in range(epochs):
        mixed = torch.from_numpy(np.random.default_rng(epoch).permutation(len(labels)))
        for rows in mixed.split(32):
            outputs = student({name: values[rows] for name, values in features.items()})
            told = None if answers is None else answers[rows]
            loss = definition.loss(outputs, labels[rows], told)
            search.zero_grad()
            loss.backward()
            search.step()
    features, truth = definition.feed(test, "evaluate")
    return float((student(features).argmax(dim=1) == truth).double().mean())


def test_a_teachers_answers_about_texts_without_labels_are_a_gain():
    """Broken once: `loss` leaves the teacher out."""
    texts, test = made_texts(), made_texts(seed=1)
    few = text_head.draw(texts["label"], 2, seed=0)
    answers = 4 * nn.functional.one_hot(torch.from_numpy(texts["label"]), TOPICS).float()
    records = Columns({"text": texts["text"], "label": few})

    alone = learn(take(records, np.flatnonzero(few >= 0)), None, test, epochs=60)

    taught = learn(records, answers, test)

    assert taught > max(0.95, alone + 0.1)


def test_features_of_a_text_do_not_depend_on_its_minibatch():
    texts = Columns({"text": np.array(["", "a tax " * 500, "tax by £" + "€" * 500], object)})
    together, none = taught_text.feed(texts, "predict")
    alone = [taught_text.feed(take(texts, slice(n, n + 1)), "predict")[0] for n in range(3)]

    assert none is None
    for name, values in together.items():
        assert torch.equal(values, torch.cat([each[name] for each in alone])), name
    assert [0, 1, 2] == (together["words"] != 0).sum(dim=1).tolist()
    said = taught_text.texts_of(together["text"])
    assert ["", ("a tax " * 500)[:1024], ("tax by £" + "€" * 500)[: 8 + 338]] == said


def test_teacher_is_the_mean_of_kept_tokens_and_a_head(transformers, tmp_path):
    """Broken once: padding is a part of the mean."""
    head = nn.Linear(8, TOPICS)
    text_head.save_file(head.state_dict(), tmp_path / "head.safetensors")
    params = {"encoder": str(tmp_path), "head": str(tmp_path / "head.safetensors"), "tokens": 3}
    texts = Columns({"text": np.array(["one", "one two three four"], object)})
    definition = load_definition("taught_text", teacher_params=params)
    teacher = definition.teacher()

    answers = definition.teach(teacher, definition.feed(texts, "predict")[0])

    rows = teacher.encoder.network.rows.weight
    for words, answer in zip((["one"], ["one", "two", "three"]), answers, strict=True):
        ids = [1 + sum(word.encode()) % 511 for word in words]
        mean = rows[ids].mean(dim=0)
        torch.testing.assert_close(head(mean / mean.norm()), answer)


def test_head_is_the_logistic_regression_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(30, 5)), np.arange(30) % 3
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    head = text_head.fit(torch.from_numpy(vectors).float(), torch.from_numpy(labels))

    wanted = linear_model.LogisticRegression(C=100, tol=1e-8, max_iter=9999).fit(vectors, labels)
    said = head(torch.from_numpy(vectors).float()).detach().numpy()
    given = wanted.decision_function(vectors)
    np.testing.assert_allclose(
        said - said.mean(1, keepdims=True), given - given.mean(1, keepdims=True), atol=0.02
    )


def test_text_head_writes_what_a_job_takes(transformers, tmp_path, capsys):
    texts = made_texts(60)
    text_head.write(tmp_path / "all.csv", texts["text"], texts["label"])
    out = tmp_path / "few"

    text_head.main(
        ["--texts", str(tmp_path / "all.csv"), "--encoder", str(tmp_path)]
        + ["--labels", "2", "--out", str(out)]
    )

    assert "texts.csv (60), labelled.csv (6)" in capsys.readouterr().out
    read, few = text_head.read(str(out / "texts.csv"))
    assert texts["text"].tolist() == read
    assert {-1: 54, 0: 2, 1: 2, 2: 2} == dict(zip(*np.unique(few, return_counts=True), strict=True))
    known = few >= 0
    assert texts["label"][known].tolist() == few[known].tolist()
    assert few[known].tolist() == text_head.read(str(out / "labelled.csv"))[1].tolist()
    params = {"encoder": str(tmp_path), "head": str(out / "head.safetensors")}
    definition = load_definition("taught_text", params={"classes": 3}, teacher_params=params)
    found = check_definition(
        definition, take(Columns({"text": texts["text"], "label": few}), slice(0, 8))
    )
    assert [] == [each for each in found if each.level != "ok"]


def test_a_class_with_too_few_texts_is_told():
    with pytest.raises(UsageError, match="class 1 has 2 texts only"):
        text_head.draw(np.array([0, 0, 0, 1, 1]), 3, seed=0)


def test_a_teacher_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    head = str(tmp_path / "head.safetensors")
    text_head.save_file(nn.Linear(8, 3).state_dict(), head)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for params, said in (
        ({}, "finds no head: `python -m edl.model_zoo.text_head"),
        ({"head": head}, "there is no folder 'encoder' of an encoder"),
        ({"head": head, "encoder": str(tmp_path)}, "pip install transformers"),
    ):
        with pytest.raises(DefinitionError, match=said):
            load_definition("taught_text", teacher_params=params).teacher()
