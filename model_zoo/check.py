"""Try a definition before a job does: `edl zoo check`.

Loading has checked names and signatures; this builds the model and takes one batch through feed,
forward, loss, backward, metrics and prediction, with the tables' rows in this process.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..common.errors import DefinitionError, EdlError
from ..common.settings import JobSettings
from ..common.values import convert
from ..data.reader import Records
from ..data.schema_given import schema_given
from ..nn.alike import check_alike, names_in
from ..nn.buffers import Buffers, shape_of
from ..nn.by_name import ByName, Optimizers, all_of, clip_norm, of_all
from ..nn.embedding import Embedding, attach, tables
from ..nn.fitness import Weights, check_loss, faults, remarks
from ..nn.local import LocalRows, torch_optimizer
from ..nn.metrics import count_batch, values
from ..nn.model_spec import TableSpec
from ..nn.modes import Modes
from ..nn.optimizers import Optimizer
from ..nn.outputs import arrays_of
from ..nn.replace import prepare
from ..nn.weights import plain, weight_of
from .reading import open_data
from .spec import Definition, load_definition

Result = TypeVar("Result")
_LIBRARIES = tuple(
    os.path.join(place, "")
    for place in {
        str(Path(__file__).parents[1]),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


@dataclass(frozen=True)
class Finding:
    """A thing that was tried.

    `level`: "ok", "warning" or "error"; `what`: the function.
    """

    level: str
    what: str
    detail: str

    def __str__(self) -> str:
        marks = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
        return f"{marks[self.level]} {self.what}: {self.detail}"


class _Stop(Exception):
    """A failure that ends the check: what comes next needs what has just failed."""


class _SpyRows(LocalRows):
    """LocalRows that remember what each table was asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: dict[str, list[Tensor]] = {}

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        self.asked.setdefault(table.name, []).append(ids)
        return super().rows(table, ids)


def check_definition(
    definition: Definition,
    records: Records | None = None,
    *,
    strategy: str = "",
    threshold_bytes: int = JobSettings.ps_embedding_threshold,
) -> list[Finding]:
    """Return findings in the order of the trial.

    The definition is sound where none is an "error".

    Without records only what needs none is tried. `strategy`: of the job that is to begin, if one
    is; `threshold_bytes`: nn.Embedding that are larger move to the servers.
    """
    trial = _Trial(definition, strategy, threshold_bytes)
    try:
        trial.build()
        if records is None:
            trial.note("warning", "feed", "not tried: give --training_data to try it on a batch")
        else:
            trial.train(records)
            trial.evaluate(records)
            trial.predict(records)
    except _Stop:
        pass
    return trial.findings


def check_file(
    model_def: str,
    training_data: str = "",
    *,
    model_zoo: str = "",
    schema: object = "",
    minibatch_size: int = 64,
    **params: object,
) -> list[Finding]:
    """Load a definition and try it, on the first records of the data if there is any.

    The arguments are the flags of `edl zoo check`; `params`: `model_params` and its like. Raises
    EdlError.
    """
    made, rates, taught, read = (
        convert(params.get(name, ""), dict[str, Any], f"--{name}")
        for name in ("model_params", "optimizer_params", "teacher_params", "data_reader_params")
    )
    definition = load_definition(
        model_def, model_zoo, made, optimizer_params=rates, teacher_params=taught
    )
    if not training_data:
        return check_definition(definition)
    reader = open_data(definition, training_data, read, schema_given(schema))
    source = reader.sources()[0]
    count = min(minibatch_size, source.records)
    return check_definition(definition, reader.read(source.name, 0, count))


class _Trial:
    def __init__(self, definition: Definition, strategy: str, threshold_bytes: int) -> None:
        self._definition = definition
        self._strategy = strategy
        self._threshold_bytes = threshold_bytes
        self._rows = _SpyRows(seed=0)
        self._model: nn.Module = nn.Identity()
        self.findings: list[Finding] = []

    def note(self, level: str, what: str, detail: str) -> None:
        self.findings.append(Finding(level, what, detail))

    def _try(self, what: str, action: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return action(*arguments)
        except Exception as error:  # the user's code may raise anything: it becomes a finding
            self.note("error", what, self._told(what, error))
            raise _Stop from error

    def _check_names(self, optimizer: Optimizers, specs: dict[str, TableSpec]) -> None:
        """Check which tensors several optimizers are of.

        Raises DefinitionError.
        """
        if isinstance(optimizer, ByName):
            names = [name for name, _ in self._model.named_parameters()]
            optimizer.check([*names, *specs])
            if self._strategy != "ps":
                of_all(optimizer, names)
        if self._strategy == "hybrid" and clip_norm(optimizer):
            raise DefinitionError(
                "clip_norm is of all gradients of a step, which no process of --strategy hybrid "
                "has: leave it out, clip by value or row, or train with another strategy"
            )

    def _told(self, what: str, error: Exception) -> str:
        """Return the error with the user's own line, the last one that led to it.

        Where there is none (a module of torch that torch calls), with that of the function `what`.
        """
        is_ours = isinstance(error, EdlError)
        told = str(error) if is_ours else f"{type(error).__name__}: {error}"
        if self._definition.file in told:
            return told
        where = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self._definition.file or _is_users(frame.filename):
                where = f"{frame.filename}:{frame.lineno}: `{frame.line}`: "
        part = what.partition(":")[0]
        if not where and not is_ours and (part == "model" or self._definition.has(part)):
            where = f"{self._definition.place(part)}: "
        return f"{where}{told}"

    def build(self) -> None:
        before = self._try("model", lambda: names_in(self._definition.model()))
        self._model = self._try("model", self._definition.model)
        self._try("model", lambda: check_alike(before, names_in(self._model)))
        staying = self._try("model", prepare, self._model, self._threshold_bytes)
        specs = self._try("model", tables, self._model)
        for told in (found := faults(self._model, self._strategy)):
            self.note("error", "model", told)
        if found:
            raise _Stop
        for told in [*staying, *remarks(self._model, self._strategy)]:
            self.note("warning", "model", told)
        attach(self._model, self._rows)
        dense = sum(p.numel() for p in self._model.parameters())
        told = ", ".join(f"{t.name} (dim {t.dim})" for t in specs.values()) or "none"
        self.note("ok", "model", f"{dense:,} dense parameters; tables on the servers: {told}")
        if self._definition.has("optimizer"):
            optimizer = self._try("optimizer", self._definition.optimizer)
            self._try("optimizer", self._check_names, optimizer, specs)
            for tried in all_of(optimizer):
                if self._strategy == "ps":  # whose servers also take a rate that torch refuses
                    self._try("optimizer", _check_values, replace(tried, lr=1e-3))
                else:
                    self._try("optimizer", _check_values, tried)
            self.note("ok", "optimizer", str(optimizer))
        metrics = self._try("metrics", self._definition.metrics)
        if metrics:
            self.note("ok", "metrics", ", ".join(metrics))
        callbacks = self._try("Callbacks", lambda: self._definition.callbacks)
        if callbacks is not None:
            self.note("ok", "Callbacks", type(callbacks).__qualname__)

    def train(self, records: Records) -> None:
        features, labels = self._try("feed", self._definition.feed, records, "train")
        self.note(
            "ok",
            "feed",
            f"{len(records)} records -> features {_shape(features)}, labels {_labels(labels)}",
        )
        Modes(self._model).train()
        buffers = Buffers(self._model)
        buffers.begin()
        weights = Weights(self._model)
        weights.begin()
        outputs = self._try("model", self._model, features)
        self._try("model", weights.check)
        self._check_features(features)
        self._check_buffers(buffers)
        self.note("ok", "forward", f"outputs {_shape(outputs)}")
        if not self._definition.has("loss"):
            return
        loss = self._try("loss", self._definition.loss, outputs, labels, *self._taught(features))
        self._check_loss(loss)
        self._try("loss", loss.backward)
        self._check_gradients()
        self.note("ok", "loss", f"{loss.item():.4g} on the first batch; gradients are finite")

    def _taught(self, features: object) -> tuple[object, ...]:
        """Return what the definition's teacher answers, where its loss takes that."""
        if not self._definition.takes_teacher:
            return ()
        if not self._definition.has("teacher"):
            return (None,)
        teacher = self._try("teacher", self._definition.teacher)
        with torch.no_grad():
            answers = self._try("teach", self._definition.teach, teacher, features)
        self.note("ok", "teacher", f"answers {_shape(answers)}")
        return (answers,)

    def _check_features(self, features: object) -> None:
        """Check that `feature` names exactly what forward gets, or the pull ahead is in vain."""
        for table in (m for m in self._model.modules() if isinstance(m, Embedding)):
            asked = self._rows.asked.get(table.name)
            if asked is None:
                self.note(
                    "warning", "model", f"the forward never asks table {table.name!r} for rows"
                )
            elif table.feature is None:
                self.note(
                    "warning",
                    "model",
                    f"table {table.name!r} names no feature=: its rows are pulled inside the "
                    "forward instead of ahead of it",
                )
            elif not isinstance(features, dict) or table.feature not in features:
                self.note(
                    "error",
                    "feed",
                    f"table {table.name!r} has feature={table.feature!r}, but feed returns "
                    f"{_shape(features)}",
                )
            elif not any(
                torch.equal(table.lookup_ids(features[table.feature]), ids) for ids in asked
            ):
                self.note(
                    "error",
                    "model",
                    f"table {table.name!r} has feature={table.feature!r}, but its forward gets "
                    "other ids: pass features[...] unchanged, or leave feature= out",
                )

    def _check_buffers(self, buffers: Buffers) -> None:
        """Check buffers: what the forward changes of them goes to all workers, but of some."""
        changes = self._try("model", buffers.changes)
        own = [
            name
            for name, now, change in zip(buffers.names, buffers.now(), changes, strict=True)
            if change is not None
            and not now.is_floating_point()
            and not name.endswith("num_batches_tracked")
        ]
        if own:
            self.note(
                "warning",
                "model",
                f"the forward changes {', '.join(own)}, which no float is: on servers each worker "
                "keeps its own, and no checkpoint has it; keep it as a float to have it shared",
            )

    def _check_loss(self, loss: Any) -> None:
        self._try("loss", check_loss, loss)
        if not bool(torch.isfinite(loss)):
            self.note("error", "loss", f"is {loss.item()} on the first batch")
            raise _Stop

    def _check_gradients(self) -> None:
        named = dict(self._model.named_parameters())
        unused = [name for name, p in named.items() if p.requires_grad and p.grad is None]
        if unused:
            self.note("warning", "model", f"no gradient reaches {', '.join(unused)}")
        for name, parameter in named.items():
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                self.note(
                    "error",
                    "model",
                    f"the gradient of {name!r} is sparse, which no group can reduce: leave out "
                    "sparse=True of functional.embedding, with the optimizers of edl.nn it comes "
                    "to the same",
                )
                raise _Stop
        rows = {
            f"a row of table {n!r}": p
            for n in self._rows.asked
            for p in self._rows.table(n).values()
        }
        for name, parameter in {**named, **rows}.items():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                self.note("error", "loss", f"the gradient of {name} is not finite")
                raise _Stop

    @torch.no_grad()
    def evaluate(self, records: Records) -> None:
        self._model.eval()
        metrics = self._definition.metrics()
        features, labels = self._try("feed", self._definition.feed, records, "evaluate")
        outputs = self._try("model", self._model, features)
        for name, metric in metrics.items():
            self._try(f"metrics: {name}", count_batch, {name: metric}, outputs, labels, features)
        if metrics:
            told = ", ".join(f"{name} {value:.4g}" for name, value in values(metrics).items())
            self.note("ok", "evaluate", f"{told} (an untrained model)")

    @torch.no_grad()
    def predict(self, records: Records) -> None:
        features, _ = self._try("feed", self._definition.feed, records, "predict")
        outputs = self._try("model", self._model, features)
        self._try("predict", arrays_of, outputs, len(records))
        self.note("ok", "predict", f"outputs {_shape(outputs)}")


def _is_users(filename: str) -> bool:
    """Tell whether a file is neither a library's nor ours, nor none at all ("<string>")."""
    return not filename.startswith(("<", *_LIBRARIES))


def _check_values(optimizer: Optimizer) -> None:
    """Check an optimizer's values.

    Raises ValueError where torch.optim takes none of the values, or DefinitionError.

    It looks at them first. With a parameter it would then import torch's compiler, which a job's
    start would wait for (1.4 s).
    """
    try:
        torch_optimizer(optimizer, [])
    except ValueError as error:
        if "empty parameter list" not in str(error):
            raise


def _shape(value: object) -> str:
    if isinstance(value, Tensor):
        return shape_of(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shape(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list) and len(value) <= 8:
        return "(" + ", ".join(_shape(part) for part in value) + ")"
    return type(value).__name__


def _labels(labels: object) -> str:
    weight = weight_of(labels)
    weights = "" if weight is None else f", weights that are {weight.sum():.4g} in sum"
    return f"{_shape(plain(labels))}{weights}"
