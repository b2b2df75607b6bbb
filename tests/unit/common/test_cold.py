"""A kernel that will be compiled is told by what numba keeps."""

import os
from pathlib import Path

import pytest

from edl.common.cold import must_compile


def test_kernels_are_compiled_where_none_are_kept_or_their_source_is_newer(tmp_path: Path) -> None:
    kept = tmp_path / "__pycache__"
    kept.mkdir()
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").touch()
        os.utime(tmp_path / f"{name}.py", (100, 100))

    def cold() -> bool:
        return must_compile(tmp_path, ("one", "two"), [kept, tmp_path / "nowhere"])

    assert cold()
    (kept / "one.f-1.py311.nbi").touch()
    assert cold()
    (kept / "deeper").mkdir()
    (kept / "deeper" / "two.g-1.py311.nbi").touch()
    assert not cold()
    os.utime(kept / "one.f-1.py311.nbi", (50, 50))
    assert cold()


def test_where_numba_is_told_a_folder_it_looks_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert must_compile()

    for name in ("turns", "pulls"):
        (tmp_path / f"{name}.f-1.py311.nbi").touch()
    assert not must_compile()
