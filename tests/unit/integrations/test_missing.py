from __future__ import annotations

import importlib
import sys

import pytest

from edl.common.errors import UsageError

LIBRARIES = {"transformers": "accelerate", "lightning": "lightning.pytorch"}


@pytest.mark.parametrize(("name", "missing"), LIBRARIES.items())
def test_without_its_library_a_module_says_what_to_install(name, missing, monkeypatch):
    monkeypatch.delitem(sys.modules, f"edl.integrations.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(UsageError, match=rf"`pip install '.\[{name}\]'`"):
        importlib.import_module(f"edl.integrations.{name}")


def test_the_package_itself_needs_no_library():
    before = {name for name in LIBRARIES if name in sys.modules}
    importlib.import_module("edl.integrations")

    assert before == {name for name in LIBRARIES if name in sys.modules}
