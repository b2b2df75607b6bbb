"""The places where definitions are found."""

import importlib.metadata

import pytest

from edl.common.errors import DefinitionError
from edl.model_zoo import catalogue
from edl.model_zoo.catalogue import find, list_definitions
from edl.model_zoo.spec import load_definition

BUILT_IN = {
    "census_wide_deep",
    "dcn_v2",
    "deepfm",
    "din",
    "gpt",
    "iris",
    "mmoe",
    "mnist_cnn",
    "mobilenet_v2",
    "resnet20",
    "resnet50",
    "taught_lenet",
    "taught_text",
    "text_transformer",
    "two_tower",
}
PARTS = (
    "def loss(a, b):\n    pass\ndef optimizer():\n    pass\ndef feed(r, m):\n    pass\n"
    "def model():\n    pass\n"
)


def message_of(*arguments):
    with pytest.raises(DefinitionError) as caught:
        find(*arguments)
    return str(caught.value)


def test_built_in_definitions_are_found_by_name():
    assert find("iris")[0].__name__ == "edl.model_zoo.iris"


def test_users_zoo_comes_before_the_built_in_one(write, tmp_path):
    write(PARTS, "iris.py")

    assert find("iris", str(tmp_path))[0].__file__ == str(tmp_path / "iris.py")


@pytest.mark.parametrize("file", ["mine.py", "mine/mine.py", "mine/__init__.py"])
def test_name_in_the_zoo_may_have_a_folder_of_its_own(write, tmp_path, file):
    write(PARTS, file)

    module, name, function = find("mine", str(tmp_path))

    assert (module.__file__, name, function) == (str(tmp_path / file), "mine", "model")


def test_dots_are_folders_of_the_zoo(write, tmp_path):
    write(PARTS, "ads/click.py")

    assert find("ads.click", str(tmp_path))[0].__file__ == str(tmp_path / "ads/click.py")


def test_path_is_found(write):
    path = write(PARTS)

    assert find(path)[0].__file__ == path


def test_dotted_module_is_found():
    assert find("edl.model_zoo.iris")[0].__name__ == "edl.model_zoo.iris"


def test_elasticdls_suffix_names_the_function_of_the_model(write, tmp_path):
    write(PARTS.replace("model", "custom_model"), "ads/click.py")

    definition = load_definition("ads.click.custom_model", str(tmp_path))

    assert (definition.name, definition.model_function) == ("ads.click", "custom_model")


def test_entry_point_is_found_and_listed(monkeypatch):
    entry = importlib.metadata.EntryPoint("flowers", "edl.model_zoo.iris", "edl.model_zoo")
    monkeypatch.setattr(
        catalogue.importlib.metadata, "entry_points", lambda group: [entry] * (group == entry.group)
    )

    assert find("flowers")[0].__name__ == "edl.model_zoo.iris"
    assert any(name == "iris" and "package" in origin for name, origin, _ in list_definitions())


def test_neighbour_of_a_definition_can_be_imported(write):
    write("WIDTH = 3\n", "neighbour_of_mine.py")

    assert find(write("import neighbour_of_mine\n" + PARTS))[0].neighbour_of_mine.WIDTH == 3


def test_unknown_name_is_told_with_the_near_one():
    message = message_of("deepfn")

    assert message.startswith("There is no definition 'deepfn' (did you mean 'deepfm'?)")
    assert all(name in message for name in BUILT_IN)


def test_missing_file_and_missing_zoo_are_told(tmp_path):
    assert "no definition file 'nowhere/mine.py'" in message_of("nowhere/mine.py")
    assert "is no folder; `edl zoo init` makes one" in message_of("x", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("\nimport nothing_there\n", 2, "ModuleNotFoundError: No module named 'nothing_there'"),
        ("x = 1\ndef f():\n    return 1 / 0\nf()\n", 3, "ZeroDivisionError"),
        ("def f(:\n    pass\n", 1, "SyntaxError"),
    ],
)
def test_broken_file_is_told_with_the_users_own_line(write, text, line, what):
    path = write(text)
    message = message_of(path)

    assert message.startswith(f"{path}:{line}: the definition cannot be imported: {what}")
    assert f"in the line `{text.splitlines()[line - 1].strip()}`" in message


def test_definition_that_was_broken_can_be_mended(write):
    message_of(write("1 / 0\n"))

    assert hasattr(find(write(PARTS))[0], "feed")


def test_listing_has_every_built_in_definition_with_what_it_is():
    listed = {name: about for name, origin, about in list_definitions() if origin == "built in"}

    assert set(listed) == BUILT_IN
    assert all(len(about) > 20 for about in listed.values())


def test_listing_reads_the_users_zoo_without_running_it(write, tmp_path):
    write('"""Mine: it clicks."""\nraise SystemExit\n' + PARTS)
    write("helper = 1\n", "helper.py")

    mine = [entry for entry in list_definitions(str(tmp_path)) if entry[1] != "built in"]

    assert mine == [("mine", str(tmp_path), "Mine: it clicks.")]
