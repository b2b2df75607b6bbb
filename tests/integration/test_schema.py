"""A value is one value on all ways of a job: the schema of its training data. Real processes."""

import csv

import pytest
from tools.jobs import Job

import edl
from edl.common import storage

DEFINITION = """
import torch
from torch import nn
from edl.nn import Adagrad, Embedding, Mean, hash64

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = Embedding("users", 1, feature="users", initializer="zeros")
        self.bias = nn.Parameter(torch.zeros(1))
    def forward(self, features):
        return self.users(features["users"]).squeeze(-1) + 0 * self.bias
def model():
    return Model()
def loss(outputs, labels):
    return ((outputs - labels) ** 2).mean()
def optimizer():
    return Adagrad(lr=1.0)
def feed(records, mode):
    users = {"users": torch.from_numpy(hash64("user", records["user"]))}
    return users, None if mode == "predict" else torch.as_tensor(records["y"], dtype=torch.float32)
def metrics():
    return {"mse": Mean(lambda outputs, labels: (outputs - labels) ** 2)}
def raw_keys():
    return {"users": "user"}
"""
USERS = [*(f"A{n}" for n in range(5)), *map(str, range(5))]


def test_users_of_digits_are_the_users_that_were_trained(tmp_path):
    """Fault S1: whole numbers in a file of their own, they had other ids, and a mse of 1."""
    model, train, test, others = (tmp_path / n for n in ("m.py", "train.csv", "test.csv", "p.csv"))
    model.write_text(DEFINITION)
    train.write_text("user,y\n" + "".join(f"{USERS[n % 10]},1\n" for n in range(80)))
    test.write_text("user,y\n0,1\n1,1\n")
    others.write_text("user\n3\n")
    common = {"model_def": str(model), "num_workers": 1, "num_ps": 1, "minibatch_size": 20}

    paths = {"training_data": str(train), "validation_data": str(test)}
    with Job(tmp_path / "trained", num_epochs=4, **paths, **common) as job:
        assert job.wait() == 0, job.logs()
    checkpoint = tmp_path / "trained" / "checkpoints"
    more = {"checkpoint_dir_for_init": str(checkpoint), "prediction_data": str(others)}
    more |= {"command": "predict", "prediction_format": "csv", "id_columns": "user"}
    out = tmp_path / "out"
    with Job(tmp_path / "predicts", output=str(out), **more, **common) as predicts:
        assert predicts.wait() == 0, predicts.logs()

    assert job.result()["metrics"]["mse"] < 1e-3
    told = [event["text"] for event in job.result()["events"]]
    assert [True] == [True for each in told if each.startswith("user: text, since ")]
    schema = storage.load(checkpoint).books["settings"]["schema"]["columns"]
    assert ["text", "int64"] == [schema[name]["type"] for name in ("user", "y")]
    (part,) = (out / "predictions").glob("part-*.csv")
    with open(part, newline="") as file:
        (row,) = csv.DictReader(file)
    assert "3" == row["user"]
    found = edl.rows(checkpoint, "users", keys=["3", "A0"])
    assert float(row["output"]) == pytest.approx(float(found.weight[0, 0]))
    assert ["3", "A0"] == found.keys.tolist()
