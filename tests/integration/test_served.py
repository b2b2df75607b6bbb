"""What is served is what was trained: the same answers of 10,000 real records everywhere."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.serving import Process
from tools.stage import edl
from tools.waiting import until

import edl as package
from edl.common.identity import Identity
from edl.distill.frames import Part
from edl.distill.kserve.link import connect
from edl.model_zoo.spec import load_definition
from edl.serve.export_format import read_exported
from edl.serve.exported import open_exported

RECORDS, SPAN, FAR_S = 10_000, 250, 60.0
NOISE = 2e-5  # of float32, of logits of some units
pytestmark = pytest.mark.slow  # minutes: real data, two trainings of each


def predicted(folder: Path, count: int):
    """Return what `edl predict` wrote, by record."""
    found = np.full(count, np.nan, np.float32)
    for part in folder.glob("predictions/part-*.npy"):
        records = np.load(part.with_name(part.name.replace("part", "records")))["record"]
        found[records] = np.load(part)
    return found


def answers(address: str, model: str, columns):
    """Ask a server about all records, by its address kserve+http:// or kserve+grpc://."""
    link = connect(f"{address}/{model}", Identity("none"))
    found = []
    for at in range(0, RECORDS, SPAN):
        parts = [Part(f"/{name}", column[at : at + SPAN]) for name, column in columns.items()]
        (part,) = link.teach(parts, SPAN, FAR_S, False).parts
        found.append(part.values)
    link.close()
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("model_def", "data"),
    [("deepfm", "nycflights13-small"), ("din", "ml-100k-histories")],
)
def test_ten_thousand_records_have_the_same_answers_everywhere(tmp_path, model_def, data):
    """Before and after each swap: by predict, load, torch, ONNX, and the servers of each."""
    home = tmp_path / "home"
    edl(home, "data", "prepare", data, "--out", tmp_path / "data")
    train, other = (tmp_path / "data" / data / f"{part}.npz" for part in ("train", "validation"))
    with np.load(train) as raw:
        asked_about = {name: raw[name][:RECORDS] for name in raw.files}
    file = tmp_path / "asked.npz"
    np.savez(file, **asked_about)
    definition = load_definition(model_def, "", {}, training=False)
    truth, versions = {}, []
    for day, begins in ((1, []), (2, ["--checkpoint_dir_for_init", "day1"])):
        edl(
            *(home, "train", "--job_name", f"day{day}", "--model_def", model_def),
            *("--training_data", train if day == 1 else other, "--num_ps", 2, *begins),
            *("--use_async", "--num_workers", 2, "--minibatch_size", 128),
        )
        out = tmp_path / f"predicted{day}"
        edl(
            *(home, "predict", "--model_def", model_def, "--checkpoint_dir_for_init", f"day{day}"),
            *("--prediction_data", file, "--output", out, "--job_name", f"predict{day}"),
        )
        place = max((home / "jobs" / f"day{day}" / "checkpoints").glob("version-*"))
        versions.append(place)
        truth[day] = predicted(out, RECORDS)
        assert np.isfinite(truth[day]).all()
        told = {}
        features, _ = definition.feed(asked_about, "predict")
        with torch.inference_mode():
            told["load"] = package.load(place)(features).numpy()
        edl(
            *(home, "export", place, tmp_path / f"exported{day}", "--data", file),
            *("--to", "torch", "--to", "onnx"),
        )
        edl(
            *(home, "export", place, tmp_path / f"halves{day}", "--data", file),
            *("--to", "onnx", "--rows_dtype", "float16"),
        )
        columns = {
            column["name"]: asked_about[column["name"]]
            for column in read_exported(tmp_path / f"exported{day}").values["feed"]["columns"]
        }
        for form in ("torch", "onnx"):
            model = open_exported(tmp_path / f"exported{day}", form=form)
            told[form] = model.infer(columns)["output"]
        halves = read_exported(tmp_path / f"halves{day}")
        off = np.abs(open_exported(tmp_path / f"halves{day}").infer(columns)["output"] - truth[day])
        print(model_def, day, "float16:", off.max(), halves.values["errors"])
        assert 0 < off.max() < 0.05
        for name, values in told.items():
            print(model_def, day, name, np.abs(values - truth[day]).max())
            np.testing.assert_allclose(values, truth[day], rtol=1e-5, atol=NOISE)
    assert np.abs(truth[1] - truth[2]).max() > 0.1

    served = tmp_path / "served"
    served.mkdir()
    shutil.copytree(versions[0], served / versions[0].name)
    with Process(
        f"m={served}", f"small={tmp_path / 'exported1'}", "--data", file, "--watch_s", "0.2"
    ) as server:
        for day, place in enumerate(versions, 1):
            if day == 2:
                shutil.copytree(place, tmp_path / place.name)
                (tmp_path / place.name).rename(served / place.name)
                until(lambda: server.ask("/v2/models/m")[1]["parameters"]["swaps"] == 2)
            for kind, address in (("http", server.http), ("grpc", server.rpc)):
                found = answers(f"kserve+{kind}://{address}", "m", columns)
                print(model_def, day, kind, np.abs(found - truth[day]).max())
                np.testing.assert_allclose(found, truth[day], rtol=1e-5, atol=NOISE)
            found = answers(f"kserve+http://{server.http}", "small", columns)
            np.testing.assert_allclose(found, truth[1], rtol=1e-5, atol=NOISE)
