"""The names of the package."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import edl.adaptive


@pytest.mark.parametrize("name", edl.adaptive.__all__)
def test_a_public_name_is_there(name):
    assert getattr(edl.adaptive, name).__name__ == name


def test_what_a_type_checker_sees_is_what_there_is():
    tree = ast.parse(Path(edl.adaptive.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {name.asname: node.module for node in guarded.body for name in node.names}

    assert edl.adaptive._MODULES == seen


def test_the_package_alone_imports_no_torch():
    code = "import sys, edl.adaptive, edl.adaptive.env; sys.exit('torch' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'AdaptiveDataLoder'"):
        edl.adaptive.AdaptiveDataLoder  # noqa: B018
