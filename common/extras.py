"""How an extra of the distribution is installed: the sentence of each error that says so."""

from __future__ import annotations

DISTRIBUTION = "edl-trainer"  # the package index has a stranger's `edl`, and nothing of this name


def install(*extras: str) -> str:
    """Return what to do where a package is missing, as the end of a sentence.

    `extras`: of pyproject.toml, such as "parquet".
    """
    return f"run `pip install '.[{','.join(extras)}]'` in the checkout of {DISTRIBUTION}"
