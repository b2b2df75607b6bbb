"""`edl zoo init`: a folder with a definition of one's own that trains at once.

The definition and the README are templates; the data are generated, so that the folder needs no
download: visits to a shop, whether they end with a purchase depends on who comes and for what.
"""

from __future__ import annotations

import csv
import keyword
import re
import shlex
from pathlib import Path

import numpy as np

from ..common.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"
_RECORDS = {"train.csv": 4000, "test.csv": 1000}


def init_definition(folder: str | Path, name: str | None = None) -> list[Path]:
    """Write the files of a new definition `name` into `folder`; answers them, the definition first.

    Without a name it has the folder's, with `_` for what cannot stand in the name of a module.

    Raises UsageError where the name is no module name, a file is there, or none can be written.
    """
    if name is None:
        name = re.sub(r"\W", "_", Path(folder).absolute().name)
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"model_{name}"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(
            f"The name {name!r} is no name of a Python module: use letters, digits, _."
        )
    target = Path(folder)
    texts = {
        f"{name}.py": (TEMPLATES / "definition.py.txt").read_text(encoding="utf-8"),
        "README.md": (TEMPLATES / "README.md.txt").read_text(encoding="utf-8"),
    }
    files = [target / file for file in (*texts, *_RECORDS)]
    there = [str(file) for file in files if file.exists()]
    if there:
        raise UsageError(f"{', '.join(there)} is there already: name another folder.")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            filled = text.replace("{name}", name).replace("{folder}", shlex.quote(str(folder)))
            (target / file).write_text(filled, encoding="utf-8")
        for seed, (file, records) in enumerate(_RECORDS.items()):
            _write_visits(target / file, records, seed)
    except OSError as error:
        raise UsageError(f"The folder {str(folder)!r} cannot be written: {error}.") from error
    return files


def _write_visits(path: Path, records: int, seed: int) -> None:
    """Write a table of visits.

    `bought` follows a logistic model of hour, user's taste and item's appeal.
    """
    rng = np.random.default_rng(seed)
    taste = np.random.default_rng(99).normal(size=(300, 3))  # the same users in every file
    appeal = np.random.default_rng(98).normal(size=(50, 3))
    user, item = rng.integers(0, 300, records), rng.integers(0, 50, records)
    hour = rng.integers(0, 24, records)
    logits = 2 * (taste[user, 0] + appeal[item, 0]) + np.sin(hour / 4) - 0.5
    bought = rng.random(records) < 1 / (1 + np.exp(-logits))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("user", "item", "hour", "bought"))
        for u, i, h, b in zip(user, item, hour, bought, strict=True):
            writer.writerow((f"u{u}", f"i{i}", int(h), int(b)))
