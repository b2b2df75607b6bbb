"""Forward, backward, pull and push against the parameter servers, for one model.

Dense values live on the servers; `_host` holds the last pulled copy, and on the CPU the parameters
are views of it. Rows of server-side tables are pulled for the ids of a batch, become leaves of the
graph, and their gradients are pushed summed by id. Running statistics (float buffers) are set to
the servers' values before each forward; the change that the forward made is pushed.

Shape suffixes: N records, U unique ids, D row dimension.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..nn.embedding import PADDING, Embedding, attach, tables
from ..nn.model_spec import DenseSpec, ModelSpec
from ..nn.optimizers import Optimizer
from ..ps.client import PsClient, Pulled, PushResult, Span

Ids = NDArray[np.int64]
Values = NDArray[np.float32]


@dataclass
class Unique:
    """The ids of one table in one batch: `ids_U`, and where each of the batch's ids is in it."""

    given: Tensor
    ids_U: Ids
    inverse: Tensor


@dataclass
class Gradients:
    """What one minibatch pushes, and the versions (by shard) that it was computed on."""

    versions: list[int]
    dense: dict[str, Values] = field(default_factory=dict)
    rows: dict[str, tuple[Ids, Values]] = field(default_factory=dict)
    loss: float | None = None


class NonFinite(ArithmeticError):
    """The loss or a gradient is NaN or infinite."""


@dataclass(frozen=True)
class _Pull:
    """A pull's rows and versions; `dense`: whether it brought the dense values too."""

    pulled: Pulled
    dense: bool


@dataclass
class _Leaf:
    ids_U: Ids
    rows_UD: Tensor


class _PulledRows:
    """The RowSource of all tables of the model during one forward."""

    def __init__(
        self,
        unique: Mapping[str, Unique],
        rows: Mapping[str, Values],
        pull: Callable[[str, Ids], Values],
        device: torch.device,
        train: bool,
    ) -> None:
        self._unique = unique
        self._rows = rows
        self._pull = pull
        self._device = device
        self._train = train
        self.leaves: dict[str, list[_Leaf]] = {}

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        """The rows of `ids` (any shape), shape [*ids.shape, dim], differentiable to the leaf."""
        entry = self._unique.get(table.name)
        if entry is not None and torch.equal(entry.given, ids.cpu()):
            values_UD = self._rows[table.name]
        else:
            entry = unique(ids)
            values_UD = self._pull(table.name, entry.ids_U)
        if not len(entry.ids_U):
            return torch.zeros(*ids.shape, table.dim, device=self._device)
        if not values_UD.flags.writeable:  # a view of a received message; torch wants its own
            values_UD = values_UD.copy()
        rows_UD = torch.from_numpy(values_UD).to(self._device)
        if self._train:
            rows_UD.requires_grad_()
            self.leaves.setdefault(table.name, []).append(_Leaf(entry.ids_U, rows_UD))
        return functional.embedding(entry.inverse.to(self._device), rows_UD)


def unique(ids: Tensor) -> Unique:
    """The distinct ids, PADDING left out, and the inverse, of an int64 tensor of any shape."""
    given = ids.detach().cpu()
    ids_U, inverse = np.unique(given.numpy().reshape(-1), return_inverse=True)
    real = ids_U != PADDING
    if not real.all():  # padding points at the first row; the module zeroes it, gradient included
        inverse = np.where(real, np.cumsum(real) - 1, 0)[inverse]
        ids_U = ids_U[real]
    return Unique(given, ids_U.astype(np.int64), torch.from_numpy(inverse.reshape(given.shape)))


def to_device(values: Any, device: torch.device) -> Any:
    """Tensors in dicts, lists and tuples, moved."""
    if isinstance(values, Tensor):
        return values.to(device, non_blocking=True)
    if isinstance(values, Mapping):
        return {key: to_device(value, device) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(to_device(value, device) for value in values)
    return values


def dense_tensors(model: nn.Module) -> dict[str, tuple[Tensor, str]]:
    """The tensors that live on the servers: name -> (tensor, "parameter" or "buffer").

    Integer buffers (BatchNorm's num_batches_tracked) stay with the worker: no value that `forward`
    uses depends on them unless momentum is None.
    """
    found: dict[str, tuple[Tensor, str]] = {}
    for name, parameter in model.named_parameters():
        found[name] = (parameter, "parameter")
    persistent = set(model.state_dict(keep_vars=True))
    for name, buffer in model.named_buffers():
        if name in persistent and buffer.is_floating_point():
            found[name] = (buffer, "buffer")
    return found


def model_spec(model: nn.Module, optimizer: Optimizer, seed: int) -> ModelSpec:
    """What the servers must know of the model."""
    dense = tuple(
        DenseSpec(name, tuple(tensor.shape), kind)
        for name, (tensor, kind) in dense_tensors(model).items()
    )
    return ModelSpec(dense, tuple(tables(model).values()), optimizer, seed)


class PsTrainer:
    """One model on the servers. Not thread-safe, but for `prepare` and the pulls it starts itself.

    `make_model` gives the same first values whenever it is called: servers that have not been told
    the model are told those. `ahead`: pulls may run while the model computes, so they land in a copy
    (`_landed`) and become the model's in `begin`; otherwise they land in the model's own arrays.
    `patience_s` bounds every wait for the servers.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor] | None,
        ps: PsClient,
        spec: ModelSpec,
        *,
        device: torch.device,
        get_model_steps: int = 1,
        ahead: bool = False,
        patience_s: float = 120.0,
    ) -> None:
        self._make_model = make_model
        self.model = make_model().to(device)
        self._loss = loss
        self._ps = ps
        self._spec = spec
        self._device = device
        self._get_model_steps = get_model_steps
        self._patience_s = patience_s
        self._steps_since_pull = 0
        self._tables = [m for m in self.model.modules() if isinstance(m, Embedding)]
        self._tensors = dense_tensors(self.model)
        self._host: dict[str, Values] = {}
        for name, (tensor, kind) in self._tensors.items():
            host = self._host[name] = _float32(tensor)
            if kind == "parameter" and device.type == "cpu" and tensor.dtype == torch.float32:
                tensor.data = torch.from_numpy(host)
        self._landed = {n: v.copy() for n, v in self._host.items()} if ahead else self._host
        self._landing = threading.RLock()  # one dense pull at a time writes to `_landed`
        self._changed: set[str] = set()  # in `_landed`, not yet the model's
        ps.agree(spec, timeout_s=patience_s)
        self._cut = ""  # whose values `_landed` holds; "" is the present
        self._known: list[int] | None = None  # versions of the model's values, by shard

    @property
    def version(self) -> int:
        """The newest version seen."""
        return max(self._known or [0])

    def prepare(self, features: Any) -> dict[str, Unique]:
        """Distinct ids of the tables that name their feature; runs in the stream's thread."""
        if not isinstance(features, Mapping):
            return {}
        return {
            table.name: unique(features[table.feature])
            for table in self._tables
            if table.feature is not None and table.feature in features
        }

    def start_pull(self, prepared: Mapping[str, Unique], pool: Executor) -> Future[_Pull]:
        """Pull what a coming batch needs while this one computes."""
        return pool.submit(self._pull, prepared, "", self._dense_due(computing=1))

    def begin(self, prepared: Mapping[str, Unique], ahead: _Pull | None) -> _Pull:
        """Make the newest parameters (or those pulled ahead) the model's; returns the pulled rows."""
        if ahead is None or self._cut:
            ahead = self._pull(prepared, "", self._dense_due())
        self._install(ahead)
        return ahead

    def gradients(
        self,
        features: Any,
        labels: Any,
        prepared: Mapping[str, Unique],
        pull: _Pull,
        stream: tuple[int, ...],
    ) -> Gradients:
        """Gradients of one minibatch on the parameters that `begin` made the model's.

        `stream` seeds torch's generator: dropout masks are a function of the span, so that a span
        computed again, by anybody, is the same one. Raises NonFinite.
        """
        self._steps_since_pull += 1
        assert self._loss is not None, "a definition without loss leases no training task"
        torch.manual_seed(_seed_of(self._spec.seed, *stream))
        self.model.train()
        for parameter in self.model.parameters():
            parameter.grad = None
        self._reset_buffers()
        source = self._attach(prepared, pull.pulled.rows, "", train=True)
        outputs = self.model(to_device(features, self._device))
        loss = self._loss(outputs, to_device(labels, self._device))
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        result = Gradients(list(self._known or []), loss=value)
        if not np.isfinite(value):
            raise NonFinite(f"the loss is {value}")
        for name, (tensor, kind) in self._tensors.items():
            if kind == "buffer":
                now = tensor.detach().cpu().to(torch.float32).numpy()
                result.dense[name] = now - self._host[name]
            elif tensor.grad is not None:
                grad = tensor.grad.detach().to(torch.float32).cpu()
                result.dense[name] = np.ascontiguousarray(grad.numpy())
        for name, leaves in source.leaves.items():
            rows = _sum_leaves(leaves)
            if rows is not None:
                result.rows[name] = rows
        for name, values in [*result.dense.items(), *((n, v) for n, (_, v) in result.rows.items())]:
            if not np.isfinite(values).all():
                raise NonFinite(f"the gradient of {name!r} is not finite (the loss is {value:g})")
        return result

    def empty(self) -> Gradients:
        """What a span pushes of which no record is used; `begin` comes first here too."""
        return Gradients(list(self._known or []))

    def push(
        self, task: int, attempt: int, start: int, end: int, gradients: Gradients
    ) -> PushResult:
        """Push one span to every shard and wait for all acknowledgements."""
        return self._ps.push(
            Span(task, attempt, start, end),
            gradients.versions,
            dense=gradients.dense,
            tables=gradients.rows,
            timeout_s=self._patience_s,
        )

    @torch.no_grad()
    def outputs(self, features: Any, prepared: Mapping[str, Unique], cut: str) -> Any:
        """The model's outputs in evaluation mode, on the CPU, of the state `cut` ("": now)."""
        with self._landing:  # a pull of the present may still be under way
            # One cut never changes: its dense values are pulled once.
            pull = self._pull(prepared, cut, not cut or self._cut != cut)
            self._install(pull)
        self._reset_buffers()
        self.model.eval()
        self._attach(prepared, pull.pulled.rows, cut, train=False)
        return to_device(self.model(to_device(features, self._device)), torch.device("cpu"))

    def refresh(self) -> None:
        """Make the dense values as they are on the servers now the model's."""
        self._install(self._pull({}, "", True))
        self._reset_buffers()

    def state_dict(self) -> dict[str, Tensor]:
        """The model's values, on the CPU."""
        return {
            name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
        }

    def outdated(self) -> None:
        """The servers call the model's values stale: the next `begin` pulls them again."""
        self._steps_since_pull = self._get_model_steps

    def _dense_due(self, computing: int = 0) -> bool:
        """`computing`: minibatches that are begun, but not yet counted by `gradients`."""
        steps = self._steps_since_pull + computing
        return self._known is None or steps >= self._get_model_steps

    def _pull(self, prepared: Mapping[str, Unique], cut: str, dense: bool) -> _Pull:
        ids = {name: entry.ids_U for name, entry in prepared.items()}
        if not dense and cut == self._cut:
            return _Pull(self._retry(ids, None, cut, False), dense=False)
        with self._landing:
            pulled = self._retry(ids, self._landed, cut, self._cut != cut)
            self._cut = cut
            self._changed |= pulled.changed
            return _Pull(pulled, dense=True)

    def _retry(
        self, ids: Mapping[str, Ids], dense: Mapping[str, Values] | None, cut: str, full: bool
    ) -> Pulled:
        """Pull; tell servers the model that have not been told."""
        pulled = self._ps.pull(ids, dense=dense, cut=cut, full=full, timeout_s=self._patience_s)
        if not pulled.initialized:
            self._ps.init(self._spec, self._first_values(), timeout_s=self._patience_s)
            pulled = self._ps.pull(ids, dense=dense, cut=cut, full=full, timeout_s=self._patience_s)
        return pulled

    def _first_values(self) -> dict[str, Values]:
        tensors = dense_tensors(self._make_model())
        return {name: _float32(tensor) for name, (tensor, _) in tensors.items()}

    def _install(self, pull: _Pull) -> None:
        """Make the dense values that have landed the model's."""
        with self._landing:
            for name in self._changed:
                host, (tensor, kind) = self._host[name], self._tensors[name]
                if self._landed is not self._host:
                    np.copyto(host, self._landed[name])
                if kind == "parameter" and tensor.data_ptr() != host.ctypes.data:
                    tensor.data.copy_(torch.from_numpy(host))
            self._changed.clear()
        if pull.dense:
            self._known = list(pull.pulled.versions)
            self._steps_since_pull = 0

    def _reset_buffers(self) -> None:
        for name, (tensor, kind) in self._tensors.items():
            if kind == "buffer":
                tensor.data.copy_(torch.from_numpy(self._host[name]))

    def _attach(
        self, prepared: Mapping[str, Unique], rows: Mapping[str, Values], cut: str, *, train: bool
    ) -> _PulledRows:
        def pull_now(name: str, ids_U: Ids) -> Values:
            if not len(ids_U):
                return np.zeros((0, 0), np.float32)
            return self._ps.pull({name: ids_U}, cut=cut, timeout_s=self._patience_s).rows[name]

        source = _PulledRows(prepared, rows, pull_now, self._device, train)
        attach(self.model, source)
        return source


def _sum_leaves(leaves: list[_Leaf]) -> tuple[Ids, Values] | None:
    """Gradients by distinct id: int64[U], float32[U, D]; None where no row got one."""
    with_grad = [leaf for leaf in leaves if leaf.rows_UD.grad is not None]
    parts = [
        (leaf.ids_U, leaf.rows_UD.grad.cpu().numpy())
        for leaf in with_grad
        if leaf.rows_UD.grad is not None and len(leaf.ids_U)
    ]
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    ids_U, inverse = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
    total_UD = np.zeros((len(ids_U), parts[0][1].shape[1]), np.float32)
    np.add.at(total_UD, inverse, np.concatenate([grad for _, grad in parts]))
    return ids_U, total_UD


def _float32(tensor: Tensor) -> Values:
    """A copy, C-contiguous."""
    return np.array(tensor.detach().cpu().to(torch.float32).numpy(), order="C", copy=True)


def _seed_of(*parts: int) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")
