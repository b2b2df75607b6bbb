"""Load a definition and check it against the contract, so that a mistake is one clear sentence.

A definition is a plain Python module (docs/model-zoo.md):

    def model(**params) -> nn.Module              required
    def loss(outputs, labels) -> Tensor           required for training
    def optimizer(**params) -> edl.nn spec        required for training
    def feed(records, mode) -> (features, labels) required; mode: "train" | "evaluate" | "predict"
                                                  or (features, labels, weight), and a loss [N]
    def metrics() -> dict[str, Metric]            optional
    def reader(path, **params) -> RecordReader    optional
    class Callbacks                               optional
    def process_predictions(outputs, worker)      optional
    def batch_rule(workers, wanted, minibatch_size) -> (minibatch, factor)    optional
    def shard_plan(model) -> [nn.Module, ...]     optional
    def teacher(**params) -> nn.Module            optional; then loss(outputs, labels, teacher)
    def teach(model, features) -> answers         optional
    def raw_keys() -> {table: column, ...}        optional

What the module defines is called only through `Definition`, which checks what comes back.
Nothing here imports torch; the definition does. catalogue.py finds definitions, check.py tries one
on a batch, scaffold.py makes a new one.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..common.errors import DefinitionError
from ..data.reader import about_text
from ..nn.arrays import records_of
from ..nn.by_name import ByName, Optimizers
from ..nn.metrics import Metric
from ..nn.optimizers import OPTIMIZERS
from ..nn.torch_metric import as_metric
from ..nn.weights import Weighted, checked, weighted
from .catalogue import did_you_mean, find, list_definitions
from .signatures import ARGUMENTS, SIGNATURES

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CALLBACKS", "SIGNATURES", "Definition", "list_definitions", "load_definition"]

_TAUGHT_LOSS = ("outputs", "labels", "teacher")  # arguments of `loss` with a teacher
_TAUGHT_SIGNATURE = "def loss(outputs, labels, teacher) -> Tensor"
# What Callbacks may define, and what each is called with.
CALLBACKS = {
    "on_train_begin": ("model",),
    "on_epoch_begin": ("epoch",),
    "on_step_begin": ("version",),
    "on_step_end": ("version", "loss"),
    "on_log": ("logs",),
    "on_epoch_end": ("epoch",),
    "on_task_end": ("kind",),
    "on_evaluate": ("metrics",),
    "on_evaluate_end": ("values",),
    "on_train_end": ("model",),
}
# What transformers' callbacks have besides.
_NOT_CALLED = {
    "on_save": ": checkpoints are written by servers, where no code of yours runs; the job's "
    "events tell of each, to --logger too",
    "on_predict": ": that is process_predictions(outputs, worker)",
    "on_prediction_step": ": that is process_predictions(outputs, worker)",
}
# ElasticDL's names, for the "did you mean" of those who come from there.
_FORMER = {
    "custom_model": "model",
    "eval_metrics_fn": "metrics",
    "callbacks": "Callbacks",
    "custom_data_reader": "reader",
    "PredictionOutputsProcessor": "process_predictions",
}


@dataclass(frozen=True)
class Definition:
    """A checked definition.

    `params` are the arguments of `model`, `optimizer_params` those of `optimizer`, `teacher_params`
    those of `teacher`.
    """

    name: str
    file: str
    doc: str
    module: ModuleType = field(repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    model_function: str = "model"
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    teacher_params: Mapping[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Tell whether the definition has the optional part `name`."""
        return hasattr(self.module, name)

    @property
    def optional(self) -> tuple[str, ...]:
        """The optional parts that the definition has."""
        return tuple(
            name
            for name in (
                "metrics",
                "reader",
                "Callbacks",
                "process_predictions",
                "batch_rule",
                "shard_plan",
                "teacher",
                "teach",
                "raw_keys",
            )
            if self.has(name)
        )

    def model(self) -> nn.Module:
        """Return a new model, made with `params`."""
        from torch import nn

        from ..nn.drawn import remembering

        with remembering():
            made = self._function(self.model_function)(**self.params)
        if not isinstance(made, nn.Module):
            raise self._wrong("model", f"returned {_kind(made)} instead of a torch.nn.Module")
        if lazy := _lazy(made):
            raise self._wrong(
                "model",
                f"has no shape for {', '.join(lazy)} before the first batch, and each worker must "
                "make the same model before that: give the sizes (nn.Linear(in, out) for "
                "nn.LazyLinear), or call the model once in model(), with zeros of the shape of a "
                "batch",
            )
        return made

    def teacher(self) -> nn.Module:
        """Return a new teacher, made with `teacher_params`, in evaluation mode."""
        from torch import nn

        function = self._function("teacher")
        try:
            inspect.signature(function).bind(**self.teacher_params)
        except (TypeError, ValueError) as error:
            told = f"does not take --teacher_params {dict(self.teacher_params)}: {error}"
            raise self._wrong("teacher", told) from error
        made = function(**self.teacher_params)
        if not isinstance(made, nn.Module):
            raise self._wrong("teacher", f"returned {_kind(made)} instead of a torch.nn.Module")
        if lazy := _lazy(made):
            raise self._wrong(
                "teacher",
                f"has no values for {', '.join(lazy)}, which each teacher would draw by itself at "
                "its first batch: load what it was trained to",
            )
        return made.eval()

    def teach(self, model: nn.Module, features: Any) -> Any:
        """Return what the teacher answers: by default its outputs."""
        teach = getattr(self.module, "teach", None)
        return model(features) if teach is None else teach(model, features)

    @property
    def takes_teacher(self) -> bool:
        """Whether `loss` takes what was taught, as its third argument."""
        return self.has("loss") and _binds(self._function("loss"), _TAUGHT_LOSS)

    @property
    def loss(self) -> Callable[..., Any]:
        """The loss of a minibatch, of labels as `feed` returns them: with or without weights."""
        return weighted(self._function("loss"))

    def optimizer(self) -> Optimizers:
        """Return the optimizer spec, made with `optimizer_params`."""
        made: Any
        try:
            made = self._function("optimizer")(**self.optimizer_params)
        except DefinitionError as error:
            raise self._wrong("optimizer", f"is not possible: {error}") from error
        known = *OPTIMIZERS.values(), ByName
        if type(made) not in known:  # nor a class derived from one: servers know none
            raise self._wrong(
                "optimizer",
                f"returned {_kind(made)}, no optimizer of edl.nn; the servers run it and keep its "
                "state, so return a spec of edl.nn, and none of one's own: "
                f"{', '.join(OPTIMIZERS)}; or a ByName of several",
            )
        optimizer: Optimizers = made
        try:
            for each in optimizer.all if isinstance(optimizer, ByName) else [optimizer]:
                each.check()
        except DefinitionError as error:
            raise self._wrong("optimizer", f"is not possible: {error}") from error
        return optimizer

    def feed(self, records: object, mode: str) -> tuple[Any, Any]:
        """Return (features, labels) of a batch; with weights, labels are a `Weighted` of both.

        What the user's code raises passes through as it is.

        But where a column is of text, numpy's and torch's sentences do not say which.
        """
        try:
            fed = self._function("feed")(records, mode)
        except (TypeError, ValueError) as error:
            if not (said := about_text(records, error)):
                raise
            raise TypeError(f"{error} ({said})").with_traceback(error.__traceback__) from error
        if not isinstance(fed, tuple) or len(fed) not in (2, 3):
            raise self._wrong("feed", f"returned {_kind(fed)} instead of (features, labels)")
        features, labels, *weight = fed
        if not weight or weight[0] is None or mode == "predict":
            return features, labels
        return features, Weighted(labels, checked("feed", weight[0], _count(labels)))

    def metrics(self) -> dict[str, Metric]:
        """Return fresh metrics by name; {} where the definition has none."""
        if not self.has("metrics"):
            return {}
        made = self._function("metrics")()
        if not isinstance(made, dict) or not all(isinstance(name, str) for name in made):
            raise self._wrong("metrics", f"returned {_kind(made)} instead of a dict by name")
        try:
            return {name: as_metric(metric) for name, metric in made.items()}
        except DefinitionError as error:
            raise self._wrong("metrics", str(error)) from error

    def raw_keys(self) -> Mapping[str, Any]:
        """Return which column the ids of a table are made of, and how; {} where it does not say."""
        return dict(self._function("raw_keys")()) if self.has("raw_keys") else {}

    @property
    def reader(self) -> Callable[..., Any] | None:
        """The definition's own `reader(path, **params)`, or None."""
        return getattr(self.module, "reader", None)

    @cached_property
    def callbacks(self) -> Any:
        """The one object of the class Callbacks in this process, or None."""
        return self._function("Callbacks")() if self.has("Callbacks") else None

    @property
    def process_predictions(self) -> Callable[[Any, Any], Any] | None:
        return getattr(self.module, "process_predictions", None)

    @property
    def shard_plan(self) -> Callable[[Any], Any] | None:
        """The definition's own shard plan, or None."""
        return getattr(self.module, "shard_plan", None)

    def batch_rule(self, workers: int, wanted: int, minibatch_size: int) -> tuple[int, float]:
        """Return the records of a minibatch of so many workers, and the learning rate's factor.

        It is asked for with all-reduce.

        `wanted`: workers that the job began with.
        """
        made = self._function("batch_rule")(workers, wanted, minibatch_size)
        match made:
            case (int(records), float() | int() as factor) if records > 0 and factor > 0:
                return records, float(factor)
        raise self._wrong(
            "batch_rule",
            f"returned {made!r} instead of (records of a minibatch, factor of the learning rate), "
            "both above 0",
        )

    def _function(self, name: str) -> Callable[..., Any]:
        function = getattr(self.module, name, None)
        if function is None:
            raise _missing(self.module, self.file, name)
        made: Callable[..., Any] = function
        return made

    def place(self, name: str) -> str:
        """Return where a part stands: its file and line."""
        line = _line(self._function(name if name != "model" else self.model_function))
        return f"{self.file}:{line}" if line else self.file

    def _wrong(self, name: str, what: str) -> DefinitionError:
        line = _line(self._function(name if name != "model" else self.model_function))
        return _error(self.file, line, name, what)


def load_definition(
    model_def: str,
    model_zoo: str = "",
    params: Mapping[str, Any] | None = None,
    *,
    training: bool = True,
    optimizer_params: Mapping[str, Any] | None = None,
    teacher_params: Mapping[str, Any] | None = None,
) -> Definition:
    """Find, import and check the definition `model_def`.

    `training`: also demand loss and optimizer. Raises DefinitionError for every mistake.
    """
    if not model_def:
        raise DefinitionError(
            "No definition: name one with --model_def (`edl zoo list` shows them)."
        )
    module, name, function = find(model_def, model_zoo)
    definition = Definition(
        name=name,
        file=str(getattr(module, "__file__", None) or module.__name__),
        doc=inspect.getdoc(module) or "",
        module=module,
        params=dict(params or {}),
        model_function=function,
        optimizer_params=dict(optimizer_params or {}),
        teacher_params=dict(teacher_params or {}),
    )
    _check(definition, training)
    return definition


def _check(definition: Definition, training: bool) -> None:
    module, file = definition.module, definition.file
    required = [definition.model_function, "feed", *(("loss", "optimizer") if training else ())]
    for name in required:
        if not hasattr(module, name):
            raise _missing(module, file, name)
    _check_misspelt(module, file, definition.model_function)
    _check_named(definition, definition.model_function, definition.params, "model")
    if training:
        _check_named(definition, "optimizer", definition.optimizer_params, "optimizer")
    for name, arguments in ARGUMENTS.items():
        if not definition.has(name):
            continue
        function = getattr(module, name)
        taught = definition.has("teacher") or not _binds(function, arguments)
        if name == "loss" and taught and _binds(function, _TAUGHT_LOSS):
            continue
        if name == "loss" and definition.has("teacher"):
            _check_call(file, name, function, _TAUGHT_LOSS, _TAUGHT_SIGNATURE)
        else:
            _check_call(file, name, function, arguments)
    if definition.has("Callbacks"):
        _check_callbacks(file, module.Callbacks)


def _missing(module: ModuleType, file: str, name: str) -> DefinitionError:
    near = did_you_mean(name, _own_names(module))
    former = next((old for old, new in _FORMER.items() if new == name and hasattr(module, old)), "")
    if former:
        near = f" (did you mean {former!r}? ElasticDL's {former} is {name} here)"
    signature = SIGNATURES.get(name, SIGNATURES["model"].replace("model", name))
    return DefinitionError(f"{file}: the definition lacks {name}{near}. Expected: {signature}")


def _check_misspelt(module: ModuleType, file: str, model_function: str) -> None:
    """Refuse an optional part under a near name, which would be ignored in silence."""
    for own in _own_names(module):
        if own in (*SIGNATURES, model_function) or own.startswith("_"):
            continue
        near = difflib.get_close_matches(own, SIGNATURES, n=1, cutoff=0.85)
        meant = near[0] if near else _FORMER.get(own, "")
        if meant and not hasattr(module, meant):
            raise _error(
                file,
                _line(getattr(module, own)),
                own,
                f"is no part of a definition: did you mean {meant!r}? Rename it (or let its name "
                "begin with an underscore)",
                signature=SIGNATURES[meant],
            )


def _own_names(module: ModuleType) -> list[str]:
    """Return functions and classes that the module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def _check_named(definition: Definition, name: str, params: Mapping[str, Any], part: str) -> None:
    """Check that the function `name` takes what its flag says, by name."""
    function, file = getattr(definition.module, name), definition.file
    if not callable(function):
        raise _error(file, 0, name, f"is {_kind(function)}, no function", SIGNATURES[part])
    try:
        signature = inspect.signature(function)
        signature.bind(**params)
    except (TypeError, ValueError) as error:
        known = [p.name for p in signature.parameters.values()]
        unknown = [key for key in params if key not in known]
        hint = did_you_mean(unknown[0], known) if unknown else ""
        raise _error(
            file,
            _line(function),
            f"{name}{signature}",
            f"does not take --{part}_params {dict(params)}: {error}{hint}",
            SIGNATURES[part],
        ) from error


def _check_call(
    file: str, name: str, function: object, arguments: tuple[str, ...], signature: str = ""
) -> None:
    kind = "class" if name == "Callbacks" else "function"
    if not callable(function) or (name == "Callbacks") != inspect.isclass(function):
        raise _error(file, 0, name, f"is {_kind(function)}, no {kind}")
    _check_arguments(file, name, function, arguments, signature or SIGNATURES[name])


def _binds(function: Any, arguments: tuple[str, ...]) -> bool:
    """Tell whether a function can be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _check_arguments(
    file: str, name: str, function: Any, arguments: tuple[str, ...], expected: str
) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature: found out when it is called
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        told = f"{signature} but is called with ({', '.join(arguments)}): {error}"
        raise _error(file, _line(function), name, f"has the arguments {told}", expected) from error


def _check_callbacks(file: str, callbacks: type) -> None:
    for name, value in vars(callbacks).items():
        if not name.startswith("on_") or not inspect.isfunction(value):
            continue
        if name not in CALLBACKS:
            raise _error(
                file,
                _line(value),
                f"Callbacks.{name}",
                f"is never called{_NOT_CALLED.get(name) or did_you_mean(name, CALLBACKS)}",
                f"one of {', '.join(CALLBACKS)}",
            )
        called = ("self", *CALLBACKS[name])
        _check_arguments(
            file, f"Callbacks.{name}", value, called, f"def {name}({', '.join(called)})"
        )


def _lazy(model: nn.Module) -> list[str]:
    """Return the modules whose parameters or buffers have no shape yet."""
    from torch.nn.parameter import is_lazy

    return [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if any(is_lazy(t) for t in (*module._parameters.values(), *module._buffers.values()))
    ]


def _error(file: str, line: int, name: str, what: str, signature: str = "") -> DefinitionError:
    where = f"{file}:{line}" if line else file
    return DefinitionError(f"{where}: {name} {what}. Expected: {signature or SIGNATURES[name]}")


def _line(function: Any) -> int:
    """Return the line of a function or class; 0 where it is unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        return int(code.co_firstlineno)
    try:
        return inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return 0


def _count(labels: Any) -> int | None:
    """Return how many records labels are of; None where they do not say."""
    try:
        return records_of(labels)
    except TypeError:
        return None


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
