"""One parameter server within the test's process, without sockets, as trainers ask a PsClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edl.nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.wire.shard import Floats, Ids
from edl.ps.worker_client import Pulled, PushOutcome, PushResult


class InProcess:
    """A PsClient of a store in this process. All tensors are one chunk."""

    num_shards, servers_version = 1, 1

    def __init__(self) -> None:
        self.slot_map = SlotMap(1)
        self.store = Store(index=0, slot_map=self.slot_map, policy=Policy(staleness=0))
        self._known: int | None = None

    def agree(self, spec: ModelSpec, *, rows_given: Mapping[str, int], **_when: float) -> None:
        assert all(tensor.elements <= CHUNK_ELEMENTS for tensor in spec.dense)
        self.store.init(spec, {}, False, rows_given=dict(rows_given))

    def init(
        self,
        spec: ModelSpec,
        dense: Mapping[str, Floats],
        rows: Mapping[str, Floats],
        **_when: float,
    ) -> None:
        chunks = {(name, 0): v.reshape(-1) for name, v in dense.items() if v.size}
        told = {name: (np.arange(len(values)), values) for name, values in rows.items()}
        self.store.init(spec, chunks, True, told)

    def pull(
        self,
        tables: Mapping[str, Ids],
        *,
        dense: Mapping[str, Floats] | None = None,
        cut: str = "",
        full: bool = False,
        **_when: float,
    ) -> Pulled:
        known = None if full or cut else self._known
        asked = list(tables.items())
        found = self.store.pull(dense=dense is not None, known_version=known, tables=asked, cut=cut)
        if found is None:
            return Pulled(False, (0,), {}, frozenset())
        version, chunks, rows = found
        for (name, _), data in chunks:
            assert dense is not None
            dense[name].reshape(-1)[:] = np.frombuffer(data, np.float32)
        if dense is not None:
            self._known = version
        names = frozenset(name for (name, _), _ in chunks)
        return Pulled(True, (version,), dict(zip(tables, rows, strict=True)), names)

    def push(
        self,
        span: Span,
        versions: Sequence[int],
        *,
        dense: Mapping[str, Floats] | None = None,
        tables: Mapping[str, tuple[Ids, Floats]] | None = None,
        **_how: object,
    ) -> PushResult:
        update = Update(
            {
                (n, 0): np.ascontiguousarray(v).reshape(-1)
                for n, v in (dense or {}).items()
                if v.size
            },
            {n: (ids, np.ascontiguousarray(v)) for n, (ids, v) in (tables or {}).items()},
        )
        pushed = self.store.push(span, versions[0], update)
        assert pushed.outcome == Outcome.APPLIED, pushed
        return PushResult(PushOutcome.APPLIED, (pushed.version,))

    def dense(self) -> dict[str, Floats]:
        """Return the values of now, flat."""
        found = self.store.pull(dense=True, known_version=None, tables=())
        assert found is not None
        _, chunks, _ = found
        return {name: np.frombuffer(data, np.float32) for (name, _), data in chunks}
