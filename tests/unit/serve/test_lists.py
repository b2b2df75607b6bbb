"""A model of list columns, trained, exported and served: the job's own answers on all ways."""

import asyncio
import json

import numpy as np
import pytest
import torch
from tools import asked as client
from tools.asgi import ask
from tools.jobs import ZOO
from tools.served import FAR_S
from tools.trained import KNOWN, records_of, train

import edl
from edl.common.errors import UsageError
from edl.common.ragged import Ragged
from edl.data.schema import Field, Schema, Type
from edl.serve.checkpoint import open_checkpoint
from edl.serve.export import Wish, export
from edl.serve.export_format import read_exported
from edl.serve.exported import open_exported
from edl.serve.from_checkpoint import CheckpointOpener, Options
from edl.serve.kserve import tensors
from edl.serve.kserve.asking import Asking
from edl.serve.kserve.http import App
from edl.serve.repository import Repository, warm
from edl.serve.sources import source_of

SCHEMA = Schema(
    (
        Field("user", Type("int64")),
        Field("genres", Type("text", lists=True)),
        Field("seen", Type("int64", lists=True)),
        Field("score", Type("float32", lists=True)),
        Field("label", Type("float64")),
    )
)
FORMS = ("torch", "embedding")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = {"schema": SCHEMA.to_json(), "training_data": "films"}
    return train(tmp_path_factory.mktemp("listed"), 2, model_def="listed", more=settings)


@pytest.fixture(scope="module")
def out(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "out"
    export(trained.checkpoint, folder, Wish(FORMS))
    return folder


@pytest.fixture(scope="module")
def films(trained):
    return records_of(trained.definition, np.arange(2 * KNOWN))


def expected(trained, records):
    """Return what `edl.load` answers."""
    with torch.inference_mode():
        return edl.load(trained.checkpoint)(trained.definition.feed(records, "predict")[0]).numpy()


def test_a_served_checkpoint_answers_lists_to_the_bit(trained, films):
    served = CheckpointOpener(Options()).open("films", str(trained.checkpoint))
    warm(served)

    found = served.infer({column.name: films[column.name] for column in served.inputs})

    assert expected(trained, films).tobytes() == found["output"].tobytes()
    assert [("genres", "BYTES", (-1,)), ("seen", "INT64", (-1,)), ("score", "FP32", (-1,))] == [
        *served.inputs[1:]
    ]


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_model_answers_the_readers_own_columns(trained, out, films, form):
    known = films.take(np.arange(KNOWN))  # `embedding` has no rows of others
    columns = {name: known[name] for name in ("user", "genres", "seen", "score")}
    served = open_exported(out, form=form)

    found = served.infer(columns)["output"]
    objects = served.infer({n: np.asarray(v) for n, v in columns.items()})["output"]

    np.testing.assert_allclose(found, expected(trained, known), rtol=1e-5, atol=1e-6)
    assert found.tobytes() == objects.tobytes()


def test_an_export_gives_the_features_of_training_to_the_bit(trained, out, films):
    served = open_exported(out, form="torch")
    features, _ = trained.definition.feed(films, "predict")

    for sent in (films, {n: np.asarray(films[n]) for n in films.names}):
        made = served._fed({column.name: sent[column.name] for column in served.inputs})
        assert {n: v.numpy().tobytes() for n, v in features.items()} == {
            n: v.tobytes() for n, v in made.items()
        }


def test_a_checkpoint_and_an_export_say_the_schema_of_their_records(trained, out):
    assert SCHEMA == Schema.from_json(read_exported(out).values["schema"])
    assert SCHEMA == edl.schema(trained.checkpoint)


def test_the_request_of_an_export_is_answered_by_its_own_server(out):
    """By all layers but the sockets: tests/integration/test_serve.py has these."""
    served = source_of("films", str(out), Options()).open(str(out))
    assert served.example is not None
    body = (out / "request.json").read_bytes()

    repository = Repository()
    repository.add("films")
    repository.swap("films", served)
    app = App(repository, Asking(repository, FAR_S))
    answer = asyncio.run(ask(app, "POST", "/v2/models/films/infer", [body]))
    told = asyncio.run(ask(app, "GET", "/v2/models/films")).told
    repository.close()

    data = json.loads((out / "response.json").read_bytes())["outputs"][0]["data"]
    assert 200 == answer.status, answer.body
    np.testing.assert_allclose(answer.told["outputs"][0]["data"], data, rtol=1e-5, atol=1e-6)
    assert {"name": "genres", "datatype": "BYTES", "shape": [-1, -1]} in told["inputs"]
    assert {"name": "genres.lengths", "datatype": "INT64", "shape": [-1]} in told["inputs"]


def test_an_export_of_before_there_were_schemas_opens_as_it_did(out, films, monkeypatch):
    """Its kinds say what each column is, and feed has got an object for each list."""
    values = json.loads((out / "MANIFEST.json").read_bytes())
    feed = values["feed"]
    assert ["<U0", "ragged"] == feed["kinds"]["genres"]
    feed["kinds"] = {name: [dtype, bool(form)] for name, (dtype, form) in feed["kinds"].items()}
    from edl.serve.columns import Asked

    records = Asked.from_json(feed).records({c["name"]: films[c["name"]] for c in feed["columns"]})

    assert np.dtype(object) == records["genres"].dtype
    assert films["genres"].tolist() == [each.tolist() for each in records["genres"]]
    assert films["user"].tolist() == records["user"].tolist()


def test_lists_of_one_length_in_the_sample_may_be_longer_later(trained, tmp_path, monkeypatch):
    """Broken once: an axis that no batch of the sample has moved is of one size."""
    module = trained.definition.module
    whole = module.records
    monkeypatch.setattr(
        module.Films,
        "read",
        lambda self, source, start, end, skip=(): whole(
            np.arange(start, end) * 4 + 2  # two genres each
        ),
    )
    out = tmp_path / "out"
    export(
        trained.checkpoint,
        out,
        Wish(("torch",), options=Options(definition=str(ZOO / "listed.py"))),
    )
    films = whole(np.arange(12))

    found = open_exported(out).infer({n: films[n] for n in ("user", "genres", "seen", "score")})

    np.testing.assert_allclose(found["output"], expected(trained, films), rtol=1e-5, atol=1e-6)


def test_the_records_that_a_model_is_traced_on_are_as_the_schema_has_them(tmp_path):
    """Broken once: those of a definition's own reader stay as it has them."""
    wide = Schema((Field("user", Type("uint64")),))
    more = {"schema": wide.to_json(), "training_data": "films"}
    trained = train(tmp_path, 1, model_def="listed", more=more)

    records = CheckpointOpener(Options()).read(open_checkpoint(trained.checkpoint)).records

    assert (np.uint64, np.int64) == (records["user"].dtype, records["seen"].values.dtype)


def test_a_sample_that_is_none_of_the_schemas_is_refused_with_both_types(tmp_path):
    strange = Schema((Field("seen", Type("text", lists=True)),))
    trained = train(
        tmp_path, 1, model_def="listed", more={"schema": strange.to_json(), "training_data": "f"}
    )

    with pytest.raises(UsageError, match="column 'seen' is text, and 5 is a whole number"):
        CheckpointOpener(Options()).open("films", str(trained.checkpoint))


def test_a_schema_that_cannot_be_read_is_one_sentence(tmp_path):
    trained = train(tmp_path, 1, model_def="listed", more={"schema": {"format": 9, "columns": {}}})

    with pytest.raises(UsageError, match="of a later version of edl"):
        CheckpointOpener(Options(data="films")).open("films", str(trained.checkpoint))


@pytest.mark.parametrize("way", ["json", "bytes", "grpc"])
def test_requests_of_lists_are_answered_alike_on_each_way(trained, films, way):
    served = CheckpointOpener(Options()).open("films", str(trained.checkpoint))
    sent = client.tensors(served.inputs, films, apart=way != "json")
    if way == "json":
        question = tensors.from_http(client.as_json(sent), "", served.inputs, served.outputs)
    elif way == "bytes":
        question = tensors.from_http(*client.as_bytes(sent), served.inputs, served.outputs)
    else:
        message = client.as_message(sent, raw=True)
        question = tensors.from_message(message, served.inputs, served.outputs)

    assert isinstance(question.inputs["genres"], Ragged)
    found = served.infer(question.inputs)["output"]
    assert expected(trained, films).tobytes() == found.tobytes()
