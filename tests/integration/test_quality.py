"""Built-in definitions reach their gates on real data with 2 servers and 2 asynchronous workers.

The gates are those of the definitions' docstrings; of flights only 40,000 are here, on which a
logistic regression of the same ids (scikit-learn, C = 0.1) reaches an AUC of 0.761.
"""

import signal

import pytest
from tools.jobs import WAIT_S, Job, send

from edl.data.datasets import list_datasets, prepare


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return a function that makes a data set's folder of files that are here.

    Nothing is downloaded.
    """
    out = tmp_path_factory.mktemp("data")
    return lambda name: prepare(name, out, echo=lambda line: None)


def begun(fraction):
    return lambda status: status["records_done"] >= fraction * status["records_total"] > 0


def trained(folder, data, definition, kills=0, wait_s=WAIT_S, **settings):
    """Train a definition, with so many kills of a worker, and return how the job ended."""
    train, validation = (
        next(path for path in sorted(data.iterdir()) if path.name.startswith(part))
        for part in ("train", "validation")
    )
    job = Job(
        folder / definition.replace("_", "-"),
        model_zoo="",
        model_def=definition,
        training_data=str(train),
        validation_data=str(validation),
        checkpoint_dir="",
        num_workers=2,
        num_ps=2,
        **{"use_async": True, **settings},
    )
    with job:
        for kill in range(kills):
            status = job.watch(begun((kill + 1) / (kills + 2)), wait_s)
            assert send(status["workers"][0]["pid"], signal.SIGKILL)
        assert 0 == job.wait(wait_s), job.logs()
    return job.result()


def reached(*arguments, **settings):
    """Train a definition, and return the metrics of the last evaluation."""
    return trained(*arguments, **settings)["metrics"]


@pytest.mark.parametrize(
    ("definition", "name", "epochs", "minibatch", "gates"),
    [
        ("iris", "iris", 40, 16, {"accuracy": 0.93}),
        pytest.param(*("mnist_cnn", "digits", 20, 32, {"accuracy": 0.98}), marks=pytest.mark.slow),
        ("census_wide_deep", "census", 1, 128, {"auc": 0.90, "accuracy": 0.845}),
        ("deepfm", "nycflights13-small", 1, 128, {"auc": 0.761}),
        pytest.param(
            *("dcn_v2", "nycflights13-small", 1, 128, {"auc": 0.761}), marks=pytest.mark.slow
        ),
    ],
)
def test_definition_reaches_its_gate_on_real_data(
    definition, name, epochs, minibatch, gates, data, tmp_path
):
    found = reached(
        tmp_path, data(name), definition, num_epochs=epochs, minibatch_size=minibatch, seed=1
    )

    missed = {metric: found[metric] for metric, gate in gates.items() if found[metric] < gate}
    assert {} == missed


@pytest.mark.slow
def test_resnet20_reaches_its_gate_with_the_statistics_of_its_batch_norms(data, tmp_path):
    """The gate is for the best checkpoint.

    The job ends at a high learning rate, where one evaluation of 359 may find 0.96
    (benchmarks/RESULTS.md, stale gradients).
    """
    settings = {"num_epochs": 10, "minibatch_size": 32, "seed": 1, "keep_best": "accuracy"}
    found = trained(tmp_path, data("digits"), "resnet20", **settings)

    assert found["best"]["value"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    ("definition", "name", "epochs", "minibatch", "gates"),
    [
        ("mmoe", "census", 4, 128, {"income_auc": 0.91, "never_married_auc": 0.955}),
        ("two_tower", "ml-100k-histories", 6, 256, {"recall_at_50": 0.30}),
        ("din", "ml-100k-histories", 3, 128, {"auc": 0.785}),
    ],
)
def test_recommender_reaches_its_gate_though_a_worker_is_killed(
    definition, name, epochs, minibatch, gates, data, tmp_path
):
    """Histories come out of a package that is downloaded."""
    found = reached(
        tmp_path,
        data(name),
        definition,
        kills=1,
        num_epochs=epochs,
        minibatch_size=minibatch,
        seed=1,
    )

    missed = {metric: found[metric] for metric, gate in gates.items() if found[metric] < gate}
    assert {} == missed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("definition", "name", "epochs", "minibatch", "gate"),
    [
        ("mobilenet_v2", "digits", 6, 32, 0.97),
        ("resnet50", "digits", 6, 32, 0.97),
        ("gpt", "shakespeare", 1, 16, 0.45),
    ],
)
def test_dense_definition_reaches_its_gate_by_all_reduce(
    definition, name, epochs, minibatch, gate, data, tmp_path
):
    settings = {
        "num_epochs": epochs,
        "minibatch_size": minibatch,
        "seed": 1,
        "strategy": "allreduce",
    }
    settings |= {"use_async": False, "kills": 1, "wait_s": 3000.0}
    found = reached(tmp_path, data(name), definition, **settings)

    assert found["accuracy"] >= gate


@pytest.mark.slow
def test_text_transformer_reaches_its_gate_where_its_data_are_prepared(tmp_path):
    (bbc,) = [listed.prepared for listed in list_datasets() if listed.name == "bbc-news"]
    if bbc is None:
        pytest.skip("bbc-news must be downloaded: run `edl data prepare bbc-news`")
    settings = {"num_epochs": 4, "minibatch_size": 32, "seed": 1}
    found = reached(tmp_path, bbc, "text_transformer", **settings)

    assert found["accuracy"] >= 0.93
