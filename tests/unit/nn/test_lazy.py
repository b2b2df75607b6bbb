"""The modules that start without torch."""

import subprocess
import sys

import pytest
from tools.turns import in_turn

import edl.nn


def _runs(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.strip()


def test_optimizers_metrics_and_hashing_come_without_torch():
    names = "SGD, Adam, AdamW, Adagrad, FTRL, AUC, Accuracy, hash64"
    code = f"import sys; from edl.nn import {names}; print('torch' in sys.modules)"

    assert _runs(code) == "False"


def test_spec_of_the_zoo_comes_without_torch():
    assert _runs("import sys, edl.model_zoo.spec; print('torch' in sys.modules)") == "False"


@in_turn(0)
def test_embedding_imports_torch_at_first_use():
    code = "import sys, edl.nn; edl.nn.Embedding; print('torch' in sys.modules)"

    assert _runs(code) == "True"


@in_turn(1)
def test_check_of_a_definition_comes_without_the_compiler_of_torch():
    """A job's start would wait for it. Broken once: the check makes an optimizer of torch."""
    code = (
        "import sys; from edl.model_zoo.check import check_definition; "
        "from edl.model_zoo.spec import load_definition; "
        "found = check_definition(load_definition('deepfm')); "
        "print({f.level for f in found} - {'ok', 'warning'}, 'torch._dynamo' in sys.modules)"
    )

    assert _runs(code) == "set() False"


def test_every_exported_name_is_there():
    assert [name for name in edl.nn.__all__ if not hasattr(edl.nn, name)] == []


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Embeding"):
        edl.nn.Embeding  # noqa: B018
