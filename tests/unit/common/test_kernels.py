from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest
from numba.core import caching
from tools.turns import in_turn

from edl.kernels import cache
from edl.kernels.compile import INTEGER, compiled

SOURCES = {
    "kernel.py": "from near import near\ndef kernel(x):\n    return near(x)\n",
    "near.py": """
from edl.kernels.compile import inlined
from far import FACTOR, far

@inlined
def near(x):
    return FACTOR * far(x)
""",
    "far.py": """
import numba

FACTOR = 10

@numba.njit
def far(x):
    return x + 1
""",
    "main.py": """
from edl.kernels.compile import INTEGER, compiled
from kernel import kernel

code = compiled(kernel, INTEGER)
print(code(1), "kept" if code.stats.cache_hits else "compiled")
""",
}


@in_turn(2)
def test_a_kernel_is_compiled_anew_when_a_file_that_it_calls_into_changes(tmp_path):
    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source)

    def run():
        # Python's own cache would miss a second edit within a second
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(tmp_path / "main.py")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout.strip()

    def edit(old, new):
        path = tmp_path / "far.py"
        path.write_text(path.read_text().replace(old, new))

    seen = [run(), run()]
    edit("x + 1", "x + 2")
    seen += [run(), run()]
    edit("FACTOR = 10", "FACTOR = 20")
    seen.append(run())

    assert ["20 compiled", "20 kept", "30 compiled", "30 kept", "60 compiled"] == seen
    assert 2 == len(list((tmp_path / "__pycache__").iterdir()))  # of the last: index and code


def test_a_kernel_whose_code_cannot_be_kept_is_compiled_all_the_same(monkeypatch):
    def no_folder(self, py_func):
        raise RuntimeError("cannot cache function")

    monkeypatch.setattr(caching.FunctionCache, "__init__", no_folder)

    assert 3 == compiled(_one_more, INTEGER)(2)


def _one_more(x):
    return x + 1


def test_the_numbers_around_a_kernel_are_constants_of_it_and_kept_apart():
    assert [3, 12] == [compiled(_adder(n), INTEGER)(2) for n in (1, 10)]
    assert compiled(_adder(1), INTEGER).stats.cache_hits


def _adder(n):
    def add(x):
        return x + n

    return add


@pytest.mark.parametrize("writable", [True, False])
def test_machine_code_goes_where_the_job_says_if_the_package_cannot_be_written(
    writable, tmp_path, monkeypatch
):
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(cache.os, "access", lambda path, mode: writable)

    def triple(x):
        return 3 * x

    cache.keep_elsewhere(tmp_path)
    code = compiled(triple, INTEGER)

    assert code(2) == 6
    assert bool(list(tmp_path.rglob("*triple*.nbi"))) is not writable


def test_what_an_image_holds_compiled_is_brought_along_and_nothing_is_overwritten(tmp_path):
    image, kept = tmp_path / "image", tmp_path / "kept"
    for name in ("ps_1/a.nbi", "ps_1/a.nbc", "nn_1/b.nbi"):
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).write_text("image")
    (kept / "nn_1").mkdir(parents=True)
    (kept / "nn_1/b.nbi").write_text("kept")

    cache.bring(image, kept)
    cache.bring(kept, kept)
    cache.bring(tmp_path / "none", kept)

    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*.nb?")}
    assert found == {"ps_1/a.nbi": "image", "ps_1/a.nbc": "image", "nn_1/b.nbi": "kept"}
    assert len(list(kept.rglob("*.*"))) == 3  # nothing partial
