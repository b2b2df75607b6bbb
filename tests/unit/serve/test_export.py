"""Exported models answer as the job's own, of whatever ids, in every form."""

import json
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch
from tools.jobs import ZOO
from tools.trained import records_of, train
from tools.turns import in_turn

import edl
from edl.common import storage
from edl.common.errors import CheckpointError, EdlError, UsageError
from edl.common.places import Place
from edl.serve import export as module
from edl.serve import export_format
from edl.serve import exported as exported_module
from edl.serve.export import Wish, export
from edl.serve.export_format import read_exported
from edl.serve.exported import open_exported
from edl.serve.from_checkpoint import Options
from edl.serve.sources import source_of

MANY = 1000  # records that are asked about, most of whose ids were never trained
ALL = ("torch", "onnx", "embedding", "rows")


class Export:
    """A model that was trained a little, and exported."""

    def __init__(self, folder, model_def, forms=ALL, definition=None, **params):
        self.trained = train(folder, 2, model_def=model_def, **params)
        self.data = folder / "data.npz"
        np.savez(self.data, **records_of(self.trained.definition, np.arange(64)))
        self.out = folder / "out"
        self.manifest = export(self.trained.checkpoint, self.out, self.wish(forms))

    def wish(self, forms=("torch",), **wishes):
        return Wish(tuple(forms), **wishes, options=Options(data=str(self.data)))

    def expected(self, numbers):
        model = edl.load(self.trained.checkpoint)
        records = records_of(self.trained.definition, numbers)
        with torch.no_grad():
            return model(self.trained.definition.feed(records, "predict")[0]).numpy()

    def request(self, numbers):
        records = records_of(self.trained.definition, numbers)
        return {
            column["name"]: records[column["name"]] for column in self.manifest["feed"]["columns"]
        }

    def answered(self, numbers, form, out=None):
        return open_exported(out or self.out, form=form).infer(self.request(numbers))["output"]


@pytest.fixture(scope="module")
def deepfm(tmp_path_factory):
    return Export(tmp_path_factory.mktemp("deepfm"), "deepfm", dim=4, hidden=8)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    """Multi-hot ids of which some are none, a mean of rows, and statistics of a norm."""
    return Export(tmp_path_factory.mktemp("ranker"), "ranker")


@pytest.fixture(params=["deepfm", "ranker"])
def exported(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_a_program_answers_as_the_job_of_known_and_unknown_ids(exported, form):
    """Broken once: rows_for answers the last row for ids that are none."""
    numbers = np.random.default_rng(0).permutation(np.arange(MANY) * 3)

    found = exported.answered(numbers, form)

    np.testing.assert_allclose(found, exported.expected(numbers), rtol=1e-5, atol=1e-6)


def test_texts_and_crosses_of_the_census_are_answered_as_the_job_does(tmp_path):
    census = Export(tmp_path, "census_wide_deep", ("torch",), dim=4, hidden=8)
    numbers = np.arange(MANY)

    assert ["wide", "deep"] == [table["name"] for table in census.manifest["tables"]]
    assert "BYTES" == census.manifest["feed"]["columns"][1]["datatype"]
    np.testing.assert_allclose(
        census.answered(numbers, "torch"), census.expected(numbers), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("form", ["torch", "onnx", "embedding"])
def test_a_batch_may_have_any_size(ranker, form):
    served = open_exported(ranker.out, form=form)

    for count in (1, 2, 300):
        found = served.infer(ranker.request(np.arange(count)))["output"]
        assert (count,) == found.shape


@in_turn(3)
def test_a_program_with_its_tables_inside_answers_as_the_job_of_known_ids(ranker):
    """Broken once: an unknown id gets the row of its neighbour."""
    model = edl.load(ranker.trained.checkpoint)
    known = {
        name: set(edl.rows(ranker.trained.checkpoint, name).ids) for name in ("users", "items")
    }
    features = ranker.trained.definition.feed(
        records_of(ranker.trained.definition, np.arange(MANY)), "predict"
    )[0]
    items = [set(row) - {-1} <= known["items"] for row in features["items"].tolist()]
    trained = np.array([u in known["users"] for u in range(MANY)]) & np.array(items)
    for name in ("users", "items"):  # what is unknown is zeros: so in the reference
        stored = model.users.source.tables[name]
        rows, is_known = stored.rows, stored.known
        stored.rows = lambda ids, r=rows, k=is_known: r(ids) * k(ids)[:, None]
    with torch.no_grad():
        expected = model(features).numpy()

    found = ranker.answered(np.arange(MANY), "embedding")

    assert 10 < trained.sum() < MANY - 10
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found[trained], ranker.expected(np.arange(MANY))[trained], rtol=1e-5, atol=1e-6
    )
    assert any("has zeros" in note for note in ranker.manifest["notes"])


@in_turn(3)
@pytest.mark.parametrize("rows_dtype", ["float16", "int8"])
def test_rows_of_fewer_bits_are_as_far_off_as_is_told(ranker, tmp_path, rows_dtype):
    """Broken once: outputs are compared with those of the model with the same near rows."""
    forms = ("torch", "embedding", "rows")
    made = export(
        ranker.trained.checkpoint,
        tmp_path / "out",
        ranker.wish(forms, rows_dtype=rows_dtype, rows="safetensors"),
    )

    numbers = np.arange(64)
    off = np.abs(ranker.answered(numbers, "torch", tmp_path / "out") - ranker.expected(numbers))
    told = made["errors"]["outputs"]["torch"]
    assert 0 < told["mean"] < told["largest"]
    assert off.max() <= 3 * told["largest"]
    assert 1e-7 < off[:32].max()
    for name in ("users", "items"):
        exact = edl.rows(ranker.trained.checkpoint, name)
        written = safetensors.numpy.load_file(tmp_path / "out" / f"rows-{name}.safetensors")
        near = written["weight"].astype(np.float32)
        if rows_dtype == "int8":
            near *= written["scale"][:, None]
        apart = np.abs(exact.weight - near)
        assert made["errors"]["weights"][name]["largest"] == pytest.approx(apart.max())
        assert made["errors"]["weights"][name]["mean"] == pytest.approx(apart.mean(), rel=1e-4)


def test_the_manifest_says_what_is_in_it(deepfm):
    told = deepfm.manifest
    columns = [column["name"] for column in told["feed"]["columns"]]

    assert [*deepfm.trained.definition.module.COLUMNS] == columns
    assert ("ranker", 4, "deepfm", {"dim": 4, "hidden": 8}) == (
        told["job"],
        told["cut"]["version"],
        told["definition"]["name"],
        told["definition"]["params"],
    )
    assert [{"input": "rows_0", "table": "fields", "ids": "ids", "size": 0, "nothing": -1}] == told[
        "uses"
    ]
    assert [("ids", [12])] == [(each["name"], each["shape"]) for each in told["inputs"]]
    others = ("MANIFEST.json", "__pycache__")  # the latter of whoever has opened it
    assert sorted(f.name for f in deepfm.out.iterdir() if f.name not in others) == sorted(
        f["name"] for f in told["files"]
    )


def test_the_example_request_has_the_example_response(exported):
    request, response = (
        json.loads((exported.out / f"{name}.json").read_text()) for name in ("request", "response")
    )
    given = {i["name"]: np.array(i["data"]).reshape(i["shape"]) for i in request["inputs"]}

    found = open_exported(exported.out).infer(given)

    expected = {o["name"]: o["data"] for o in response["outputs"]}
    assert [*expected] == [*found]
    np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-5)


READS = """
from pathlib import Path
WORDS = {reads}
"""
BY_LAYER = READS.format(
    reads="__import__('edl.nn.preprocess').nn.preprocess.IndexLookup("
    "str(Path(__file__).with_name('words.txt')))"
)
BY_ITSELF = READS.format(reads="Path(__file__).with_name('words.txt').read_text()")


@pytest.mark.parametrize("reads", [BY_LAYER, BY_ITSELF])
def test_what_layers_have_read_beside_a_definition_goes_with_it(tmp_path, reads):
    """Broken once: the copy of the definition lacks its vocabulary and cannot be imported."""
    place = tmp_path / "definition"
    place.mkdir()
    (place / "mine.py").write_text((ZOO / "ranker.py").read_text() + reads)
    (place / "words.txt").write_text("a\nb\n")
    made = Export(tmp_path, str(place / "mine.py"), ("torch",))
    shutil.rmtree(place)

    manifest = read_exported(made.out).values
    files = {path.name for path in made.out.iterdir()}
    if reads == BY_LAYER:
        assert {"definition.py", "words.txt"} <= files
        assert (9,) == made.answered(np.arange(9), "torch").shape
    else:
        assert not {"definition.py", "words.txt"} & files
        assert "a copy of it does not work by itself" in manifest["notes"][0]
        assert manifest["feed"] is None


def test_an_export_is_a_source_of_a_server(deepfm):
    """Broken once: an exported model is taken for a folder of checkpoints."""
    source = source_of("flights", str(deepfm.out), Options())

    served = source.open(*source.there())

    assert ("flights", "4", "onnx") == (served.name, served.version, served.about["form"])
    assert [("output", "FP32", ())] == [*served.outputs]
    np.testing.assert_allclose(
        served.infer(deepfm.request(np.arange(5)))["output"],
        deepfm.expected(np.arange(5)),
        rtol=1e-5,
        atol=1e-6,
    )


def test_an_onnx_file_takes_rows_and_no_ids(deepfm):
    import onnx

    graph = onnx.load(deepfm.out / "model.onnx").graph

    assert ["rows_0"] == [each.name for each in graph.input]
    assert ["output"] == [each.name for each in graph.output]


def test_a_torn_or_changed_file_is_refused_with_its_name(deepfm, tmp_path):
    """Broken once: sizes are not compared where checksums are not."""
    for name in ("MANIFEST.json", *(each["name"] for each in deepfm.manifest["files"])):
        whole = (deepfm.out / name).read_bytes()
        for data in (None, whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
            folder = tmp_path / "broken"
            shutil.copytree(deepfm.out, folder)
            (folder / name).unlink()
            if data is not None:
                (folder / name).write_bytes(data)
            with pytest.raises(CheckpointError, match=name):
                read_exported(folder)
            if data is None or len(data) != len(whole):
                with pytest.raises(CheckpointError, match=name):
                    read_exported(folder, checksums=False)
            shutil.rmtree(folder)


def _changed(values, rng):
    """Return a manifest with one value that is another, and of another type mostly."""
    changed = json.loads(json.dumps({k: v for k, v in values.items() if k != "checksum"}))
    at = changed
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        if not keys:
            return changed
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.15:
            strange = [None, -1, 1 << 70, "x", "../x", [], {}, {"a": 1}, [3], 0.5]
            at[key] = strange[int(rng.integers(len(strange)))]
            return changed
        at = at[key]


def test_a_strangers_manifest_is_an_error_or_is_read(ranker, tmp_path):
    """Broken once: the kinds of a feed's columns are taken for an object, whatever they are."""
    folder = tmp_path / "strange"
    shutil.copytree(ranker.out, folder)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        values = _changed(ranker.manifest, rng)
        values["checksum"] = export_format._checksum(values)
        (folder / "MANIFEST.json").write_text(json.dumps(values))
        try:
            found = read_exported(folder, checksums=False)
            exported_module.tables_of(found)
            exported_module._feed_of(found)
            for form in ("torch", "onnx", "embedding"):
                for name in found.form(form).values():
                    found.path(name)
        except EdlError:
            refused += 1
    assert 75 < refused < 150


def test_what_cannot_be_exported_leaves_nothing_behind(deepfm, tmp_path):
    with pytest.raises(UsageError, match="is there already"):
        export(deepfm.trained.checkpoint, deepfm.out, deepfm.wish())
    with pytest.raises(UsageError, match=r"--inside_mib\): raise that"):
        export(
            deepfm.trained.checkpoint,
            tmp_path / "out",
            deepfm.wish(("embedding",), inside_nbytes=100),
        )
    with pytest.raises(UsageError, match="name a file with some"):
        export(deepfm.trained.checkpoint, tmp_path / "out", Wish())
    assert [] == list(tmp_path.iterdir())


def test_an_export_goes_to_a_url_and_is_served_from_there(ranker, tmp_path, monkeypatch):
    """Its manifest is the last that is written. Broken once: it is the first."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    url = "memory://exports/ranker"
    written = []
    monkeypatch.setattr(
        "edl.common.places.Place.write",
        lambda self, name, *parts, real=Place.write: (
            written.append(name),
            real(self, name, *parts),
        )[1],
    )

    export(ranker.trained.checkpoint, url, ranker.wish())

    assert "MANIFEST.json" == written[-1]
    numbers = np.arange(9)
    np.testing.assert_allclose(
        ranker.answered(numbers, "torch", url), ranker.expected(numbers), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(UsageError, match="is there already"):
        export(ranker.trained.checkpoint, url, ranker.wish())


@in_turn(1)
def test_without_onnx_it_says_what_to_install(deepfm, tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"--to onnx needs onnx: run `pip install '.\[export\]'`"):
        export(deepfm.trained.checkpoint, tmp_path / "out", deepfm.wish(("onnx",)))
    assert "torch" == open_exported(deepfm.out).about["form"]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"pip install '.\[export\]'"):
        open_exported(deepfm.out, form="onnx")


def test_a_checkpoint_of_a_script_is_refused(tmp_path):
    folder = tmp_path / "version-000000000001"
    folder.mkdir()
    storage.write_manifest(folder, version=1, num_shards=1, num_slots=1, files=[], model={"x": 1})

    with pytest.raises(CheckpointError, match="is no checkpoint of `edl train`"):
        export(folder, tmp_path / "out", Wish(("rows",)))


def test_a_request_without_a_column_is_refused(ranker, monkeypatch):
    served = open_exported(ranker.out)

    with pytest.raises(UsageError, match="lacks 'record'"):
        served.infer({})
    with pytest.raises(UsageError, match="'record' is int64, and 'a' is a text"):
        served.infer({"record": np.array(["a", "b"], object)})
    with pytest.raises(UsageError, match="'record' is int64, and here it is list of 2 x 2"):
        served.infer({"record": np.zeros((2, 2, 2), np.int64)})
    monkeypatch.setattr(served._definition.module, "feed", lambda records, mode: 1 / 0)
    with pytest.raises(UsageError, match="feed of definition does not take these records"):
        served.infer({"record": np.arange(2)})
    served.close()
    with pytest.raises(UsageError, match="closed"):
        served.infer({"record": np.arange(2)})


@in_turn(1)
def test_a_form_that_is_not_there_is_named(ranker, tmp_path):
    out = tmp_path / "out"
    export(ranker.trained.checkpoint, out, Wish(("rows",)))

    with pytest.raises(UsageError, match="any form that answers: it has none"):
        open_exported(out)
    with pytest.raises(CheckpointError, match="no exported model"):
        open_exported(tmp_path)
