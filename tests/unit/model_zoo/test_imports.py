"""The files that a definition's answers depend on: its own and those of the user's it imports.

A test's docstring says what was broken once to see it fail.
"""

import sys

import pytest

from edl.model_zoo.imports import files_of
from edl.model_zoo.spec import load_definition

REST = """
def model(): ...
def feed(records, mode): ...
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return write(path, text) -> path; what is imported of it ends with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}

    def make(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield make
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def found(model_def):
    return files_of(load_definition(str(model_def), training=False).module)


def test_neighbours_are_told_however_they_are_imported(write):
    """Broken once: (1) only what was imported already; (2) no calls; (3) only the first level."""
    write("mine/told_a.py", "import told_b")
    write("mine/told_b.py", "def work():\n    from told_c.nets import deep")
    write("mine/told_c/__init__.py")
    write("mine/told_c/nets.py", "from . import layers, missing\nfrom .layers import Linear")
    write("mine/told_c/layers.py", "import torch, json, edl.nn\nLinear = 1")
    write("mine/told_d.py")
    write("mine/told_nobody.py")
    late = "import importlib\ndef teach(model, features):\n    importlib.import_module('told_d')\n"
    main = write("mine/student.py", f"import told_a\n{late}{REST}")

    files = found(main)

    names = {"", "told_a", "told_b", "told_c", "told_c.nets", "told_c.layers", "told_d"}
    assert names == set(files)
    assert main == files[""]
    assert main.parent / "told_c" / "layers.py" == files["told_c.layers"]


def test_a_package_tells_its_modules_by_names_that_know_no_folder(write):
    for folder in ("one", "two"):
        write(f"{folder}/student/nets.py")
        write(f"{folder}/student/__init__.py", f"from . import nets\n{REST}")
    one, two = (found(write("x").parent / folder / "student") for folder in ("one", "two"))

    assert {"", ".nets"} == set(one) == set(two)
    assert one[".nets"] != two[".nets"]


def test_what_lies_elsewhere_and_is_not_installed_counts_and_what_is_installed_does_not(write):
    """Broken once: site-packages below the definition's folder count."""
    write("lib/told_lib/__init__.py", "from . import inner")
    write("lib/told_lib/inner.py")
    write("mine/.venv/lib/site-packages/told_big.py")
    sys.path += [str(write("lib/x").parent), str(write("mine/.venv/lib/site-packages/y").parent)]
    main = write("mine/student.py", f"import numpy, torch, yaml, told_lib, told_big\n{REST}")

    assert {"", "told_lib", "told_lib.inner"} == set(found(main))


def test_a_definition_that_is_built_in_tells_its_neighbours_and_no_more_of_edl():
    assert {"", "edl.model_zoo", "edl.model_zoo.mnist_cnn"} == set(found("taught_lenet"))


def test_a_neighbour_that_is_no_python_is_told_as_it_is(write):
    write("told_broken.py", "def (")
    main = write("student.py", f"def teach(model, features):\n    import told_broken\n{REST}")

    assert {"", "told_broken"} == set(found(main))
