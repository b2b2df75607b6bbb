"""A mistake in a definition is one sentence: the function, the file, the expected signature."""

import numpy as np
import pytest

from edl.common.errors import DefinitionError
from edl.data.reader import Columns
from edl.model_zoo.spec import SIGNATURES, load_definition
from edl.nn import AUC, SGD

WHOLE = {
    "model": "def model(hidden=4):\n    from torch import nn\n    return nn.Linear(1, hidden)\n",
    "loss": "def loss(outputs, labels):\n    return (outputs - labels).mean()\n",
    "optimizer": "def optimizer():\n    from edl.nn import SGD\n    return SGD(lr=0.5)\n",
    "feed": "def feed(records, mode):\n    return records, None\n",
}


def source(**changes):
    """Return a whole definition with parts changed, added, or (None) left out."""
    return "\n".join(text for text in {**WHOLE, **changes}.values() if text)


@pytest.fixture
def load(write):
    def load_source(params=None, training=True, **changes):
        return load_definition(write(source(**changes)), params=params, training=training)

    return load_source


def told(action, *arguments, **named):
    with pytest.raises(DefinitionError) as caught:
        action(*arguments, **named)
    return str(caught.value)


def test_a_whole_definition_gives_its_parts(load):
    definition = load(params={"hidden": 7})

    assert definition.name == "mine"
    assert definition.model().out_features == 7
    assert definition.optimizer() == SGD(lr=0.5)
    assert definition.feed([1], "train") == ([1], None)
    assert definition.metrics() == {}
    assert (definition.reader, definition.callbacks, definition.process_predictions) == (
        None,
        None,
        None,
    )
    assert definition.optional == ()


OF_RATE = "def optimizer(lr=0.5):\n    from edl.nn import SGD\n    return SGD(lr)\n"


def test_parameters_of_the_optimizer_come_by_name(write):
    path = write(source(optimizer=OF_RATE))

    assert load_definition(path).optimizer() == SGD(lr=0.5)
    assert load_definition(path, optimizer_params={"lr": 2.0}).optimizer() == SGD(lr=2.0)


@pytest.mark.parametrize(
    ("signature", "params", "sentence"),
    [
        ("lr=0.5", {"rl": 1}, "does not take --optimizer_params {'rl': 1}"),
        ("lr", {}, "does not take --optimizer_params {}: missing a required argument: 'lr'"),
    ],
)
def test_parameters_that_the_optimizer_does_not_take_are_told(write, signature, params, sentence):
    path = write(source(optimizer=OF_RATE.replace("lr=0.5", signature)))

    message = told(load_definition, path, optimizer_params=params)

    assert f"optimizer({signature}) {sentence}" in message
    assert load_definition(path, training=False).has("optimizer")


def test_optional_parts_are_given(load):
    definition = load(
        metrics="from edl.nn import AUC\ndef metrics():\n    return {'auc': AUC()}\n",
        Callbacks="class Callbacks:\n    def on_train_end(self, model):\n        pass\n",
        reader="def reader(path, sep=','):\n    return path + sep\n",
        process="def process_predictions(outputs, worker):\n    return worker\n",
    )

    assert isinstance(definition.metrics()["auc"], AUC)
    assert definition.callbacks is definition.callbacks
    assert definition.reader("a", sep=";") == "a;"
    assert definition.process_predictions(0, 3) == 3
    assert definition.optional == ("metrics", "reader", "Callbacks", "process_predictions")


@pytest.mark.parametrize("name", ["model", "loss", "optimizer", "feed"])
def test_missing_function_names_function_file_and_signature(load, name):
    message = told(load, **{name: None})

    assert f"mine.py: the definition lacks {name}" in message
    assert message.endswith(f"Expected: {SIGNATURES[name]}")


def test_loss_and_optimizer_are_needed_for_training_only(load):
    assert load(loss=None, optimizer=None, training=False).has("loss") is False


@pytest.mark.parametrize(
    ("name", "wrong", "line"),
    [
        ("loss", "def loss(outputs):\n    pass\n", 5),
        ("feed", "def feed(records):\n    pass\n", 12),
        ("metrics", "def metrics(outputs):\n    pass\n", 15),
        ("reader", "def reader():\n    pass\n", 15),
        ("process_predictions", "def process_predictions(outputs):\n    pass\n", 15),
        ("Callbacks", "class Callbacks:\n    def __init__(self, x):\n        pass\n", 15),
    ],
)
def test_wrong_arguments_name_function_line_and_signature(load, name, wrong, line):
    message = told(load, **{name: wrong})

    assert f"mine.py:{line}: {name} has the arguments" in message
    assert message.endswith(f"Expected: {SIGNATURES[name]}")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("def metric():\n    pass\n", "metrics"),
        ("def readers(path):\n    pass\n", "reader"),
        ("class Callback:\n    pass\n", "Callbacks"),
        ("def process_prediction(o, w):\n    pass\n", "process_predictions"),
        ("def eval_metrics_fn():\n    pass\n", "metrics"),
        ("def custom_data_reader(p):\n    pass\n", "reader"),
    ],
)
def test_misspelt_optional_part_is_told_not_ignored(load, wrong, meant):
    message = told(load, extra=wrong)

    assert f"did you mean {meant!r}?" in message
    assert message.endswith(f"Expected: {SIGNATURES[meant]}")


def test_helpers_with_other_names_are_left_alone(load):
    assert load(extra="def tokenize(text):\n    pass\ndef _metric():\n    pass\n").name == "mine"


def test_near_name_of_a_missing_function_is_suggested(load):
    message = told(load, optimizer="def optimiser():\n    pass\n")

    assert "lacks optimizer (did you mean 'optimiser'?)" in message


def test_elasticdls_name_of_a_missing_function_is_explained(load):
    message = told(load, model="def custom_model():\n    pass\n")

    assert "did you mean 'custom_model'? ElasticDL's custom_model is model here" in message


def test_unknown_model_param_is_told_with_the_near_one(load):
    message = told(load, params={"hiden": 3})

    assert "mine.py:1: model(hidden=4) does not take --model_params {'hiden': 3}" in message
    assert "did you mean 'hidden'?" in message


@pytest.mark.parametrize(
    ("name", "wrong", "what"),
    [
        (
            "model",
            "def model():\n    return 3\n",
            "model returned a int instead of a torch.nn.Module",
        ),
        (
            "optimizer",
            "def optimizer():\n    return 'adam'\n",
            "optimizer returned a str, no optimizer",
        ),
        (
            "feed",
            "def feed(r, m):\n    return r\n",
            "feed returned a list instead of (features, labels)",
        ),
        ("metrics", "def metrics():\n    return []\n", "metrics returned a list instead of a dict"),
        ("metrics", "def metrics():\n    return {'a': 1}\n", "is no metric: it lacks update"),
    ],
)
def test_wrong_result_names_function_file_and_signature(load, name, wrong, what):
    definition = load(**{name: wrong})
    arguments = ([1], "train") if name == "feed" else ()

    message = told(getattr(definition, name), *arguments)

    assert what in message
    assert "mine.py:" in message
    assert message.endswith(f"Expected: {SIGNATURES[name]}")


def test_optimizer_of_torch_is_told_to_be_a_spec(load):
    text = (
        "def optimizer():\n    import torch\n"
        "    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])\n"
    )

    assert "return a spec of edl.nn" in told(load(optimizer=text).optimizer)


def test_what_the_users_feed_raises_passes_through(load):
    definition = load(feed="def feed(records, mode):\n    raise KeyError('age')\n")

    with pytest.raises(KeyError, match="age"):
        definition.feed([1], "train")


@pytest.mark.parametrize(
    "use", ["r['age'] / 10", "r['age'].astype('f4')", "torch.tensor(r['age'])", "r['age'] + 1.0"]
)
def test_column_of_text_where_numbers_are_wanted_is_named(load, use):
    definition = load(feed=f"import torch\ndef feed(r, mode):\n    return {use}, None\n")
    ages, towns = np.array(["7", "8", "?"]), np.array(["A", "B", "C"])

    with pytest.raises(TypeError, match=r"column 'age', as '\?' shows;.*dtypes=") as caught:
        definition.feed(Columns({"town": towns, "age": ages}), "train")
    assert "'town'" not in str(caught.value)
    with pytest.raises(TypeError, match=r"column 'age', as 'A' shows"):
        definition.feed(Columns({"age": towns}), "train")


def test_what_is_not_about_a_column_of_text_is_not_said_to_be(load):
    definition = load(feed="def feed(r, mode):\n    raise ValueError('my own')\n")

    with pytest.raises(ValueError, match="^my own$"):
        definition.feed(Columns({"town": np.array(["A", "B"])}), "train")


def test_unknown_callback_is_told(load):
    message = told(load, extra="class Callbacks:\n    def on_task_ended(self, k):\n        pass\n")

    assert "Callbacks.on_task_ended is never called (did you mean 'on_task_end'?)" in message


def test_callback_that_runs_nowhere_says_what_does_instead(load):
    message = told(load, extra="class Callbacks:\n    def on_save(self):\n        pass\n")

    assert "Callbacks.on_save is never called: checkpoints are written by servers" in message


def test_callback_with_other_arguments_is_told(load):
    message = told(load, extra="class Callbacks:\n    def on_train_end(self):\n        pass\n")

    assert "Callbacks.on_train_end has the arguments (self) but is called" in message
    assert message.endswith("Expected: def on_train_end(self, model)")


def test_part_that_is_no_function_is_told(load):
    assert "loss is a int, no function" in told(load, loss="loss = 3\n")


TEACHER = "def teacher(width=4):\n    from torch import nn\n    return nn.Linear(1, width)\n"
TAUGHT = "def loss(outputs, labels, teacher):\n    return (outputs - teacher).mean()\n"


def test_a_teacher_is_made_with_its_arguments_and_answers_its_outputs(write):
    import torch

    path = write(source(loss=TAUGHT, teacher=TEACHER))
    definition = load_definition(path, teacher_params={"width": 3})
    made = definition.teacher()

    assert made.out_features == 3
    assert not made.training
    assert definition.takes_teacher
    assert torch.equal(made(torch.ones(2, 1)), definition.teach(made, torch.ones(2, 1)))


def test_teach_goes_before_the_outputs(load):
    definition = load(
        loss=TAUGHT, teacher=TEACHER, teach="def teach(model, features):\n    return features\n"
    )
    assert definition.teach(definition.teacher(), 7) == 7


def test_a_loss_beside_a_teacher_takes_its_answers(load):
    message = told(load, teacher=TEACHER)

    assert "loss has the arguments" in message
    assert "(outputs, labels, teacher)" in message


def test_a_loss_may_take_answers_of_others_teachers(load):
    assert load(loss=TAUGHT).takes_teacher


def test_a_loss_of_two_arguments_takes_no_answers(load):
    assert not load().takes_teacher


def test_a_teacher_that_is_no_module_is_told(load):
    definition = load(loss=TAUGHT, teacher="def teacher():\n    return 3\n")

    assert "teacher returned a int instead of a torch.nn.Module" in told(definition.teacher)


def test_weights_of_feed_go_with_the_labels_but_in_predictions(load):
    feed = "def feed(records, mode):\n    return records, records, [[2.0]] * len(records)\n"
    definition = load(feed=feed)

    features, labels = definition.feed([1, 2], "train")

    assert ([1, 2], [1, 2], [2.0, 2.0]) == (features, labels.labels, labels.weight.tolist())
    assert ([1, 2], [1, 2]) == definition.feed([1, 2], "predict")


def test_no_weights_are_none(load):
    definition = load(feed="def feed(records, mode):\n    return records, None, None\n")

    assert ([1], None) == definition.feed([1], "train")
