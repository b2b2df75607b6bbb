"""`edl export`: a checkpoint as a model that runs without a job, in a folder, whole or not at all.

What each file is: export_format.py. Every program is run on a few batches of the sample before the
folder is there, and what it answers is compared with the model as the job has it; how far rows of
fewer bits, and outputs by them, are from the exact ones is in the manifest and told.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import __version__
from ..common import finite
from ..common.errors import EdlError, UsageError
from ..common.extras import install
from ..common.locations import is_local
from ..common.places import Place
from ..common.storage import MANIFEST, FileRecord, write_file
from ..data.exact import Values
from ..data.reader import Records, take
from ..model_zoo.spec import load_definition
from ..nn.preprocess.read import read_in
from . import convert
from .checkpoint import Checkpoint, open_checkpoint
from .columns import Asked
from .export_format import Exported, sealed
from .export_parts import (
    AsHeld,
    cut_of,
    held_tables,
    json_of,
    neighbours,
    rows_kept,
    save_onnx,
    whole_folder,
)
from .exported import Answering, features_of, import_onnxruntime
from .features import Batches
from .from_checkpoint import (
    CheckpointOpener,
    Options,
    Sampled,
    asked_by,
    example_of,
)
from .rows import Lookup, Rows
from .servable import Column
from .table_file import Error, TableFile, write_table
from .tracing import ROWS_ALONE, Model, apart
from .trained import load, schema_in

FORMS = ("torch", "onnx", "rows", "embedding")
ROWS_DTYPES = ("own", "float32", "float16", "int8")
INSIDE_NBYTES = 2 << 30
_DEFINITION, _DENSE = "definition.py", "dense.safetensors"
_SAMPLED = 2048  # records that outputs are compared on
_FEW = 32  # that columns are found on
_NEAR = 1e-3  # of the largest output: a program that is further from its model is another one


@dataclass(frozen=True)
class Wish:
    """A wish for an export: the forms that it is to have, and how.

    `forms`: of FORMS. `rows_dtype`: of ROWS_DTYPES; "own": as the job keeps them. `rows`: the files
    of --to rows, of convert.FORMS. `inside_nbytes`: the most that tables may take inside a program.
    `options`: of the definition and the records.
    """

    forms: tuple[str, ...] = ("torch",)
    rows_dtype: str = "own"
    rows: str = "parquet"
    inside_nbytes: int = INSIDE_NBYTES
    options: Options = field(default_factory=Options)

    @property
    def traced(self) -> bool:
        return set(self.forms) != {"rows"}

    @property
    def outside(self) -> bool:
        """Tell whether table files are written."""
        return bool({"torch", "onnx"} & set(self.forms))

    def kept(self, dtype: str) -> str:
        """Return what rows of a table are kept as."""
        return dtype if self.rows_dtype == "own" else self.rows_dtype


def check_wish(wish: Wish, out: str) -> None:
    """Raise UsageError where an export could not be written, before anything is done for it."""
    if is_local(out):
        convert.check_new(Path(out))
    elif Place(out).has(MANIFEST):
        raise UsageError(f"{out} is there already: name a new folder.")
    if "onnx" in wish.forms:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(package) is None:
                raise UsageError(f"--to onnx needs {package}: {install('export')}")
        import_onnxruntime()  # before torch does, which would let it tell of us
    parquet = "rows" in wish.forms and wish.rows == "parquet"
    if parquet and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"--to rows needs pyarrow: {install('parquet')}")


def export(checkpoint: str | Path, out: str | Path, wish: Wish) -> dict[str, Any]:
    """Write an exported model into a folder, which must be new; return its manifest.

    `out`: a path or a URL. Raises EdlError: no checkpoint that is whole, a model that cannot be
    traced, no sample.
    """
    check_wish(wish, str(out))
    found = open_checkpoint(checkpoint, checksums=wish.options.checksums)
    with whole_folder(str(out)) as folder:
        making = _Export(found, folder, wish)
        making.write()
        manifest = sealed(making.values(), making.files)
        write_file(folder / MANIFEST, manifest)
    return finite.loads(manifest)  # type: ignore[no-any-return]


class _Export:
    """An export in the making."""

    def __init__(self, found: Checkpoint, folder: Path, wish: Wish) -> None:
        self._found, self._folder, self._wish = found, folder, wish
        self.files: list[FileRecord] = []
        self._tables: list[dict[str, Any]] = []
        self._forms: dict[str, dict[str, str]] = {}
        self._weights: dict[str, Error] = {}
        self._errors: dict[str, Error] = {}
        self._notes: list[str] = []
        self._traced: dict[str, Any] = {"inputs": [], "outputs": [], "uses": [], "feed": None}
        settings = found.settings
        self._schema = schema_in(settings, found.where)
        self._definition: dict[str, Any] = {
            "name": str(wish.options.definition or settings.get("model_def") or ""),
            "params": settings.get("model_params") or {},
            "fingerprint": "",
            "file": "",
        }

    def write(self) -> None:
        """Write all files but the manifest. Raises EdlError."""
        if self._wish.outside:
            self._write_tables()
        if self._wish.traced:
            self._write_programs()
        if "rows" in self._wish.forms:
            self._write_rows()

    def values(self) -> dict[str, Any]:
        """Return what the manifest says."""
        found = self._found
        return {
            "edl": __version__,
            "torch": torch.__version__,
            "job": str(found.settings.get("job_name") or ""),
            "checkpoint": found.where,
            "cut": cut_of(found),
            "definition": self._definition,
            "forms": self._forms,
            **self._traced,
            "schema": self._schema.to_json(),
            "rows_dtype": self._wish.rows_dtype,
            "tables": self._tables,
            "errors": {
                "weights": {name: error.to_json() for name, error in self._weights.items()},
                "outputs": {form: error.to_json() for form, error in self._errors.items()},
            },
            "notes": self._notes,
        }

    def _write_tables(self) -> None:
        for number, spec in enumerate(self._found.spec.tables):
            path = self._folder / f"table-{number:03d}.safetensors"
            rows, kept = self._found.rows(spec.name), self._wish.kept(spec.dtype)
            record, self._weights[spec.name] = write_table(
                path, spec, self._found.spec.seed, rows, kept
            )
            self.files.append(record)
            self._tables.append(
                {
                    **{name: getattr(spec, name) for name in ("name", "dim", "dtype")},
                    "kept": kept,
                    "rows": sum(len(block.ids) for block in rows),
                    "initializer": spec.initializer,
                    "scale": spec.scale,
                    "seed": self._found.spec.seed,
                    "file": record.name,
                }
            )

    def _write_programs(self) -> None:
        options = replace(self._wish.options, sampled=_SAMPLED)
        sampled = CheckpointOpener(options).read(self._found)
        definition, records, schema = sampled
        asked = asked_by(sampled._replace(records=take(records, slice(_FEW))))
        loaded = load(self._found.where, definition.model, checksums=False)
        exact = {
            spec.name: Lookup(spec, self._found.spec.seed, self._found.rows(spec.name))
            for spec in self._found.spec.tables
        }
        self._schema = schema.over(asked.schema)
        model = Model(loaded, Batches.of(definition.feed, records, torch.no_grad()(loaded)), exact)
        self._traced |= {
            "inputs": [{**i._asdict(), "shape": [*i.shape]} for i in model.inputs],
            "outputs": [{**o._asdict(), "shape": [*o.shape]} for o in model.outputs],
            "uses": [use._asdict() for use in model.uses],
        }
        self._copy_definition(sampled, asked)
        if self._wish.outside:
            self._write_outside(model)
        if "embedding" in self._wish.forms:
            self._write_inside(model, exact)
        self._write_example(model, asked, records)

    def _write_outside(self, model: Model) -> None:
        """Write the dense part in the forms that are wanted, and compare them with the model."""
        files = {told["name"]: TableFile(self._folder / told["file"]) for told in self._tables}
        near = model.answered(files)
        inputs = [each.name for each in model.inputs]
        rows = [use.input for use in model.uses]
        outputs = [column.name for column in model.outputs]
        parts = [("program", "model", model.dense(), [*inputs, *rows], outputs)]
        if model.computed:
            names = [model.uses[number].ids for number in model.computed]
            parts.append(("ids", "ids", model.ids(), inputs, names))
        for form in ("torch", "onnx"):
            if form not in self._wish.forms:
                continue
            self._forms[form] = {}
            for what, stem, program, given, found in parts:
                name = f"{stem}.{'pt2' if form == 'torch' else 'onnx'}"
                if form == "torch":
                    torch.export.save(program, self._folder / name)
                else:
                    save_onnx(program, self._folder / name, given, found)
                self._forms[form][what] = self._written(name)
            self._compare(form, model, near, files)

    def _write_inside(self, model: Model, exact: Mapping[str, Lookup]) -> None:
        held = held_tables(
            self._found, model.uses, exact, self._wish.kept, self._wish.inside_nbytes
        )
        for name, (_, error) in held.items():
            self._weights.setdefault(name, error)
        program = model.inside({name: table for name, (table, _) in held.items()})
        torch.export.save(program, self._folder / "embedding.pt2")
        self._forms["embedding"] = {"program": self._written("embedding.pt2")}
        bounded = {name for name, (table, _) in held.items() if table.ids is None}
        near = model.answered(
            {
                spec.name: AsHeld(
                    exact[spec.name], self._wish.kept(spec.dtype), spec.name in bounded
                )
                for spec in self._found.spec.tables
            }
        )
        self._compare("embedding", model, near, {})
        if unknown := [name for name in held if name not in bounded]:
            self._notes.append(
                f"embedding: an id that is not in the table has zeros, the mean of first values, "
                f"where the job answers its own first value ({', '.join(unknown)})"
            )

    def _compare(
        self,
        form: str,
        model: Model,
        near: list[dict[str, NDArray[Any]]],
        files: Mapping[str, TableFile],
    ) -> None:
        """Run a form that was written on the batches. Raises UsageError where it is another."""
        values = finite.loads(finite.dumps(self.values()))
        so_far = Exported(self._folder, values, tuple(self.files))
        answering = Answering(so_far, form, dict(files))
        answers = [answering(features_of(features, model.inputs)) for features, _ in model.batches]
        off = apart(near, answers)
        largest = max(
            (float(np.abs(v).max()) for a in near for v in a.values() if v.size), default=0
        )
        if not off.largest <= _NEAR * max(1.0, largest):
            raise UsageError(
                f"the model that was exported to {form} answers otherwise than the model, by up to "
                f"{off.largest:.3g}: its forward decides by values, which a program cannot"
                f"{ROWS_ALONE}"
            )
        self._errors[form] = apart(model.answers, answers)

    def _copy_definition(self, sampled: Sampled, asked: Asked) -> None:
        """Copy the definition's file if it is all of it; else a request brings features.

        What layers of edl.nn.preprocess have read of the files beside it goes along.
        """
        definition = sampled.definition
        path = Path(definition.file)
        if path.is_file():
            self._definition["fingerprint"] = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix != ".py" or not path.is_file():
            why = f"{definition.file} is no file"
        elif definition.model_function != "model":
            why = f"its model is made by {definition.model_function}"
        elif beside := neighbours(path):
            why = f"it needs {', '.join(beside)} beside it"
        elif why := self._copied(path, sampled):
            why = f"a copy of it does not work by itself: {why}"
        else:
            self._traced["feed"] = asked.to_json()
            return
        self._notes.append(f"the definition is not in it, so requests bring features: {why}")

    def _copied(self, path: Path, sampled: Sampled) -> str:
        """Copy a definition and what it has read beside it; return why the copy is none, or ""."""
        content = {_DEFINITION: path.read_bytes()}
        content |= {
            n: c for n, c in read_in(path.parent).items() if not (self._folder / n).exists()
        }
        # Tried elsewhere: Python leaves a folder __pycache__ beside what it has imported.
        with tempfile.TemporaryDirectory(prefix="edl-definition-") as scratch:
            for name, each in content.items():
                Path(scratch, name).write_bytes(each)
            try:
                params = self._definition["params"]
                copied = load_definition(f"{scratch}/{_DEFINITION}", "", params, training=False)
                asked_by(sampled._replace(definition=copied))
            except EdlError as error:
                return str(error)
        for name, each in content.items():
            (self._folder / name).write_bytes(each)
        self._definition["file"] = _DEFINITION
        for name in content:
            self._written(name)
        return ""

    def _write_example(self, model: Model, asked: Asked, records: Records) -> None:
        """Write a request about the first records, and the answer of the model to it.

        Bytes that are no UTF-8 cannot be in JSON: then there is none.
        """
        features, count = model.batches.others[0]
        if self._traced["feed"] is not None:
            first = take(records, np.arange(count) % len(records))
            given: Mapping[str, Values] = example_of(asked, first)
            columns: tuple[Column, ...] = asked.columns
        else:
            given = features_of(features, model.inputs)
            columns = tuple(each.column for each in model.inputs)
        answer = model.answers[1]
        try:
            inputs = [json_of(c, given[c.name]) for c in columns]
        except UnicodeDecodeError:
            self._notes.append(
                "there is no request.json: JSON cannot have the bytes of these records, which are "
                "no UTF-8"
            )
            return
        for name, told, values in (
            ("request.json", "inputs", inputs),
            ("response.json", "outputs", [json_of(c, answer[c.name]) for c in model.outputs]),
        ):
            (self._folder / name).write_text(finite.dumps({told: values}, indent=1))
            self._written(name)

    def _write_rows(self) -> None:
        """Write dense values and tables for others."""
        errors: dict[str, Error] = {}

        def changed(found: Rows) -> Rows:
            return rows_kept(found, self._wish.kept("float32"), errors)

        scratch = self._folder / "rows.tmp"
        scratch.mkdir()
        form: dict[str, str] = {}
        for record in convert.write(self._found, scratch, self._wish.rows, False, changed):
            name = record.name if record.name == _DENSE else f"rows-{record.name}"
            (scratch / record.name).rename(self._folder / name)
            form[name.rpartition(".")[0]] = name
            self.files.append(FileRecord(name, record.nbytes, record.sha256))
        scratch.rmdir()
        self._forms["rows"] = form
        self._weights = {**errors, **self._weights}

    def _written(self, name: str) -> str:
        """Enter a file that is in the folder now."""
        self.files.append(convert.record_of(self._folder / name))
        return name
