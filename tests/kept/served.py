"""The content of a kept folder that others read than a master: deltas, exports, states of scripts.

As books.py this knows by which functions it is read, and gives JSON values.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from kept import adapted

from edl.launch import state
from edl.serve.export_format import read_exported
from edl.serve.exported import open_exported
from edl.serve.follow import Folder, Pursuit
from edl.serve.table_file import TableFile


def of_deltas(job_dir: Path) -> dict[str, Any]:
    """Describe what a reader of deltas comes to: its way, and the rows and values at its end."""
    folder = Folder(job_dir / "deltas")
    pursuit: Pursuit[Any] = Pursuit(folder)
    way = []
    while pursuit.look(folder.names(), 0.0):
        way.append([pursuit.here.about.number, pursuit.here.about.records])
    here = pursuit.here
    rows = {
        name: {
            str(id): row.tolist()
            for ids, some in table.blocks()
            for id, row in zip(ids.tolist(), some, strict=True)
        }
        for name, table in sorted(here.tables.items())
    }
    dense = {name: values.tolist() for name, values in sorted(here.dense.items())}
    about = {"job": here.about.job, "version": here.version}
    return {**about, "way": way, "rows": rows, "dense": dense}


def of_export(job_dir: Path) -> dict[str, Any]:
    """Describe what an exported model answers to its own example, and the rows of its tables."""
    out = job_dir / "exported"
    asked = json.loads((out / "request.json").read_text())["inputs"]
    given = {
        each["name"]: np.array(each["data"], each["datatype"].lower()).reshape(each["shape"])
        for each in asked
    }
    servable = open_exported(out)
    outputs = {name: _short(values) for name, values in servable.infer(given).items()}
    servable.close()
    tables = {}
    found = read_exported(out)
    for told in found.values["tables"]:
        table = TableFile(found.path(told["file"]))
        tables[told["name"]] = _short(table.rows(np.arange(8, dtype=np.int64)))
    return {"asked": [each["data"] for each in asked], "outputs": outputs, "tables": tables}


def of_adaptive(job_dir: Path) -> dict[str, Any]:
    """Describe what an adaptive script does that goes on with its checkpoint, to its end."""
    with adapted.replica(job_dir / "adaptive"):
        return adapted.run()


def of_state(job_dir: Path) -> dict[str, Any]:
    """Describe the state that the script of a launched job goes on with."""
    where = {"EDL_CHECKPOINT_PATH": str(job_dir / "checkpoints")}
    with mock.patch.dict(os.environ, where):
        saved = state.load()
    return {"counts": saved.state["counts"].tolist(), **saved.progress}


def _short(values: Any) -> Any:
    return np.asarray(values, np.float64).round(5).tolist()


OF = {"deltas": of_deltas, "export": of_export, "adaptive": of_adaptive}
