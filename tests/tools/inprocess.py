"""One parameter server within the test's process, without sockets: what trainers ask of a PsClient."""

import numpy as np

from edl.nn.model_spec import CHUNK_ELEMENTS
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.worker_client import Pulled, PushOutcome, PushResult


class InProcess:
    """See the module. All tensors are one chunk."""

    num_shards, servers_version = 1, 1

    def __init__(self):
        self.slot_map = SlotMap(1)
        self.store = Store(index=0, slot_map=self.slot_map, policy=Policy(staleness=0))
        self._known = None

    def agree(self, spec, *, timeout_s):
        assert all(tensor.elements <= CHUNK_ELEMENTS for tensor in spec.dense)
        self.store.init(spec, {}, complete=False)

    def init(self, spec, dense, *, timeout_s):
        chunks = {(name, 0): v.reshape(-1) for name, v in dense.items() if v.size}
        self.store.init(spec, chunks, complete=True)

    def pull(self, tables, *, dense=None, cut="", full=False, timeout_s):
        known = None if full or cut else self._known
        asked = list(tables.items())
        found = self.store.pull(dense=dense is not None, known_version=known, tables=asked, cut=cut)
        if found is None:
            return Pulled(False, (0,), {}, frozenset())
        version, chunks, rows = found
        for (name, _), data in chunks:
            dense[name].reshape(-1)[:] = np.frombuffer(data, np.float32)
        if dense is not None:
            self._known = version
        names = frozenset(name for (name, _), _ in chunks)
        return Pulled(True, (version,), dict(zip(tables, rows, strict=True)), names)

    def push(self, span, versions, *, dense=None, tables=None, **how):
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

    def dense(self):
        """The values of now, flat."""
        _, chunks, _ = self.store.pull(dense=True, known_version=None, tables=())
        return {name: np.frombuffer(data, np.float32) for (name, _), data in chunks}
