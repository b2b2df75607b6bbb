"""Forward, backward, pull and push against the parameter servers, for one model.

Dense values live on the servers; `_host` holds the last pulled copy, and on the CPU the parameters
are views of it. Rows of server-side tables are pulled for the ids of a batch, all tables in one
request; `_Sum` is where the backward pass adds up their gradients, and those sums are pushed.
Running statistics (float buffers) are set to the servers' values before each forward; the change
that the forward made is pushed, where it made one (buffers.py).

Gradients may travel in fewer bytes (ps/wire/quantize.py): what the code loses of a dense tensor is
carried into the next push, as long as this incarnation lives, and taken back where a push is not
applied. Rows are rounded at random, by draws that are a function of the span.

Shape suffixes: N records, U unique ids, D row dimension.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.ids import finite
from ...nn.buffers import Buffers
from ...nn.by_name import clip_norm
from ...nn.device import Link, outputs_of, seed_of, seed_step, to_device, values_of
from ...nn.fitness import Weights, check_loss, loss_value
from ...nn.model_spec import ModelSpec
from ...nn.modes import Modes
from ...nn.moved import take_first_rows
from ...nn.precision import Overflow
from ...ps.books.ledger import Span
from ...ps.wire import quantize
from ...ps.worker_client import PsClient, Pulled, PushResult
from ..model import PLAIN, Passes, compiled, dense_tensors
from ..phases import PULL, PUSH, Phases
from ..trainer import Gradients, Pull
from .ids import Unique
from .rows import Ids, TableRows, Values


@dataclass(frozen=True)
class Exchange:
    """The way in which a trainer and its servers exchange values.

    `get_model_steps`: steps between two pulls of the dense values. `ahead`: pulls may run while the
    model computes, so they land in a copy (`_landed`) and become the model's in `begin`; otherwise
    they land in the model's own arrays. `push_pull`: a push brings the dense values of its version
    back in the same round trip; for versions of one push each, and not together with `ahead`.
    `wire`: how gradients travel. `patience_s` bounds every wait for the servers.
    """

    get_model_steps: int = 1
    ahead: bool = False
    push_pull: bool = False
    wire: str = "float32"
    patience_s: float = 120.0

    def __post_init__(self) -> None:
        if self.push_pull and (self.ahead or self.get_model_steps > 1):
            raise ValueError("push_pull writes to the model's values, which `ahead` still uses")


class PsTrainer:
    """One model on the servers.

    Not thread-safe, but for `prepare` and the pulls it starts itself.

    `make_model` gives the same first values whenever it is called: servers that have not been told
    the model are told those.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor] | None,
        ps: PsClient,
        spec: ModelSpec,
        *,
        device: torch.device,
        passes: Passes = PLAIN,
        exchange: Exchange = Exchange(),
        phases: Phases | None = None,
    ) -> None:
        self._make_model = make_model
        self.model = make_model().to(device)
        self._numbers = passes.numbers(device)
        self._forward = self._numbers.of(compiled(self.model) if passes.compile else self.model)
        self._weights = Weights(self.model)
        self._modes = Modes(self.model)
        self._loss = loss
        self._ps = ps
        self._spec = spec
        self._device = device
        self._link = Link(device)
        self._exchange = exchange
        self._phases = phases or Phases()
        self._patience_s = exchange.patience_s
        self._residual: dict[str, Values] = {}  # what the codes of dense tensors have lost so far
        self._steps_since_pull = 0
        self._rows = TableRows(self.model, ps, self._link, self._patience_s)
        self._tensors = dense_tensors(self.model)
        self._parameters = list(self.model.parameters())
        self._host: dict[str, Values] = {}
        for name, (tensor, kind) in self._tensors.items():
            host = self._host[name] = _float32(tensor)
            if kind == "parameter" and device.type == "cpu" and tensor.dtype == torch.float32:
                tensor.data = torch.from_numpy(host)
        # A buffer of another type than float32 is touched only when the servers' value changes.
        held = [name for name, (_, kind) in self._tensors.items() if kind == "buffer"]
        self._buffers = Buffers(self.model, held)
        self._buffers.begin()
        self._told = {name: self._host[name].copy() for name in self._buffers.names}
        self._landed = (
            {n: v.copy() for n, v in self._host.items()} if exchange.ahead else self._host
        )
        self._landing = threading.RLock()  # one dense pull at a time writes to `_landed`
        self._changed: set[str] = set()  # in `_landed`, not yet the model's
        given = {name: len(rows) for name, rows in take_first_rows(self.model).items()}
        ps.agree(spec, rows_given=given, timeout_s=self._patience_s)
        self._cut = ""  # whose values `_landed` holds; "" is the present
        self._known: list[int] | None = None  # versions of the model's values, by shard

    @property
    def version(self) -> int:
        """The newest version seen."""
        return max(self._known or [0])

    def prepare(self, features: Any) -> dict[str, Unique]:
        """Return the distinct ids of the tables that name their features.

        Runs in the stream's thread.
        """
        return self._rows.prepare(features)

    def start_pull(
        self,
        prepared: Mapping[str, Unique],
        pool: Executor,
        after: Collection[Future[PushResult]] = (),
    ) -> Future[Pull]:
        """Pull what a coming batch needs while this one computes, once those pushes have ended."""
        dense = self._dense_due(computing=1)

        def pull() -> Pull:
            wait(after)
            return self._pull(prepared, "", dense)

        return pool.submit(pull)

    def begin(self, prepared: Mapping[str, Unique], ahead: Pull | None) -> Pull:
        """Make the newest parameters (or those pulled ahead) the model's.

        Returns the rows.
        """
        if ahead is None or self._cut:
            ahead = self._pull(prepared, "", self._dense_due())
        self._install(ahead)
        return ahead

    def gradients(
        self,
        features: Any,
        labels: Any,
        prepared: Mapping[str, Unique],
        pull: Pull,
        stream: tuple[int, ...],
    ) -> Gradients:
        """Return the gradients of one minibatch on the parameters that `begin` made the model's.

        `stream` seeds torch's generator: dropout masks are a function of the span, so that a span
        computed again, by anybody, is the same one. Raises NonFinite.
        """
        self._steps_since_pull += 1
        result = self._numbers.fit(lambda: self._pass(features, labels, prepared, pull, stream))
        self._clip(result)
        if self._exchange.wire != "float32":
            self._round(result, stream)
        return result

    def _pass(
        self,
        features: Any,
        labels: Any,
        prepared: Mapping[str, Unique],
        pull: Pull,
        stream: tuple[int, ...],
    ) -> Gradients:
        """Pass forward and backward once. Raises NonFinite, Overflow for what gradients are."""
        assert self._loss is not None, "a definition without loss leases no training task"
        seed_step(seed_of(self._spec.seed, *stream), self._device)
        self._modes.train()
        for parameter in self._parameters:
            parameter.grad = None
        self._reset_buffers()
        source = self._rows.attach(prepared, pull.pulled.rows, "", train=True)
        self._weights.begin()
        outputs = self._forward(to_device(features, self._device))
        self._weights.check()
        loss = self._loss(outputs, to_device(labels, self._device))
        check_loss(loss)
        factor = self._numbers.factor()
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        value = loss_value(loss, labels)
        self._numbers.unscale(parameter.grad for parameter in self._parameters)
        result = Gradients(list(self._known or []), self._dense_gradients(), source.gradients())
        result.loss = value
        for _, sums_UD in result.rows.values():
            self._numbers.unscale([torch.from_numpy(sums_UD)])
        for name, values in [*result.dense.items(), *((n, v) for n, (_, v) in result.rows.items())]:
            if not finite(values):
                raise Overflow(f"the gradient of {name!r} is not finite (the loss is {value:g})")
        return result

    def _clip(self, gradients: Gradients) -> None:
        """Scale all gradients of a push to the norm that the optimizer allows at most."""
        if not (most := clip_norm(self._spec.optimizer)):
            return
        found = [v for n, v in gradients.dense.items() if self._tensors[n][1] == "parameter"]
        found += [sums_UD for _, sums_UD in gradients.rows.values()]
        norms = [float(np.linalg.norm(values.reshape(-1))) for values in found]
        scale = np.float32(most / (float(np.linalg.norm(norms)) + 1e-6))  # as torch
        if scale < 1:
            for values in found:
                values *= scale

    def _dense_gradients(self) -> dict[str, Values]:
        """Return gradients of parameters and changes of buffers, by name, where there are some."""
        found = {
            name: tensor.grad
            for name, (tensor, kind) in self._tensors.items()
            if kind == "parameter"
        }
        found |= zip(self._buffers.names, self._buffers.changes(), strict=True)
        there = {
            name: tensor if tensor.layout == torch.strided else tensor.to_dense()
            for name, tensor in found.items()
            if tensor is not None
        }
        return dict(zip(there, self._link.fetch(list(there.values())), strict=True))

    def _round(self, gradients: Gradients, stream: tuple[int, ...]) -> None:
        """Round the gradients to what the wire will hold of them."""
        for name, values in gradients.dense.items():
            flat = values.reshape(-1)
            residual = self._residual.setdefault(name, np.zeros_like(flat))
            lost = gradients.lost[name] = np.empty_like(flat)
            quantize.carry(flat, residual, lost, self._exchange.wire)
        for name, (ids_U, sums_UD) in gradients.rows.items():
            seed = seed_of(self._spec.seed, *stream, name)
            quantize.round_rows(sums_UD, ids_U, seed, self._exchange.wire)

    def withdraw(self, gradients: Gradients) -> None:
        """Take back gradients that will not be applied: their codes have lost nothing.

        Where some of the shards did apply them, those are off by one step of the code for good.
        """
        for name, lost in gradients.lost.items():
            self._residual[name] -= lost
        gradients.lost = {}

    def empty(self) -> Gradients:
        """Return what a span pushes of which no record is used; `begin` comes first here too."""
        self._steps_since_pull += 1
        return Gradients(list(self._known or []))

    def push(
        self, task: int, attempt: int, start: int, end: int, gradients: Gradients
    ) -> PushResult:
        """Push one span to every shard and wait for all acknowledgements.

        With `push_pull` no other call but another `push` may run meanwhile.
        """
        span = Span(task, attempt, start, end)
        if not self._exchange.push_pull:
            return self._send(span, gradients, None)
        with self._landing:
            result = self._send(span, gradients, None if self._cut else self._landed)
            self._changed |= result.changed
            if result.pulled:
                self._known = list(result.versions)
                self._steps_since_pull = 0
        return result

    def _send(
        self, span: Span, gradients: Gradients, into: Mapping[str, Values] | None
    ) -> PushResult:
        with self._phases.of(PUSH):
            result = self._ps.push(
                span,
                gradients.versions,
                dense=gradients.dense,
                tables=gradients.rows,
                wire=self._exchange.wire,
                dense_into=into,
                timeout_s=self._patience_s,
            )
        self._phases.pushed(result.nbytes)
        return result

    @torch.no_grad()
    def outputs(self, features: Any, prepared: Mapping[str, Unique], cut: str) -> Any:
        """Return the model's outputs in evaluation mode, on the CPU.

        They are those of the state `cut` ("": now).
        """
        with self._landing:  # a pull of the present may still be under way
            # One cut never changes: its dense values are pulled once.
            pull = self._pull(prepared, cut, not cut or self._cut != cut)
            self._install(pull)
        self._reset_buffers()
        self._rows.attach(prepared, pull.pulled.rows, cut, train=False)
        return outputs_of(self.model, features, self._device, self._numbers)

    def refresh(self) -> None:
        """Make the dense values as they are on the servers now the model's."""
        self._install(self._pull({}, "", True))
        self._reset_buffers()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's values, on the CPU."""
        return values_of(self.model)

    def outdated(self) -> None:
        """Have the next `begin` pull the model's values again: the servers call them stale."""
        self._steps_since_pull = self._exchange.get_model_steps

    def _dense_due(self, computing: int = 0) -> bool:
        """Tell whether the dense values are to be pulled.

        `computing`: minibatches that are begun, but not yet counted by `gradients`.
        """
        steps = self._steps_since_pull + computing
        return self._known is None or steps >= self._exchange.get_model_steps

    def _pull(self, prepared: Mapping[str, Unique], cut: str, dense: bool) -> Pull:
        ids = {name: entry.ids_U for name, entry in prepared.items()}
        if not dense and cut == self._cut:
            if not ids:
                return Pull(Pulled(True, tuple(self._known or ()), {}, frozenset()), dense=False)
            return Pull(self._retry(ids, None, cut, False), dense=False)
        with self._landing:
            pulled = self._retry(ids, self._landed, cut, self._cut != cut)
            self._cut = cut
            self._changed |= pulled.changed
            return Pull(pulled, dense=True)

    def _retry(
        self, ids: Mapping[str, Ids], dense: Mapping[str, Values] | None, cut: str, full: bool
    ) -> Pulled:
        """Pull; servers that have not been told the model are told."""
        while True:
            with self._phases.of(PULL):
                pulled = self._ps.pull(
                    ids, dense=dense, cut=cut, full=full, timeout_s=self._patience_s
                )
            if pulled.initialized:
                return pulled
            model = self._make_model()
            dense = {n: _float32(tensor) for n, (tensor, _) in dense_tensors(model).items()}
            rows = take_first_rows(model)
            self._ps.init(self._spec, dense, rows, timeout_s=self._patience_s)

    def _install(self, pull: Pull) -> None:
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
        """Set the buffers to the servers' values."""
        for name, value in zip(self._buffers.names, self._buffers.before, strict=True):
            host, told = self._host[name], self._told[name]
            if not np.array_equal(host.view(np.int32), told.view(np.int32)):
                value.copy_(torch.from_numpy(host))
                np.copyto(told, host)
        self._buffers.restore()


def _float32(tensor: Tensor) -> Values:
    """Return a copy, C-contiguous."""
    return np.array(tensor.detach().cpu().to(torch.float32).numpy(), order="C", copy=True)
