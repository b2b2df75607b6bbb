"""Every wait has a deadline, or a reason that stands here."""

import ast
from pathlib import Path

import pytest

import edl

pytestmark = pytest.mark.fast

ROOT = Path(edl.__file__).parent
FOLDERS = (
    "master",
    "worker",
    "runtime",
    "adaptive",
    "launch",
    "durable",
    "ps",
    "wire",
    "distill",
    "registry",
)
# What waits for ever where it is called so; with how many arguments it does not.
WAITS = {"wait": 1, "wait_for": 2, "join": 1, "result": 1, "get": 1, "acquire": 1, "recv": 9}
COLLECTIVE = "an operation of torch's group, which has a timeout of its own"
WAITS |= {"communicate": 9, "accept": 9, "readline": 9}
DEADLINES = {"timeout", "timeout_s", "block", "blocking"}

# file: source of the call: why it may wait for ever
REASONS = {
    "durable/loop.py": {"done.result()": "it is done"},
    "durable/supervisor.py": {
        "self._start(after).wait()": (
            "its whole work: the master is its child, and says what it does"
        ),
    },
    "ps/rows/memory.py": {"asked.get()": "a daemon thread's next work"},
    "ps/rows/work.py": {
        "self.submit(threading.get_native_id).result()": "a new thread's first word",
        "self._help.result()": "it is done",
    },
    "ps/wire/grpc.py": {"future.result()": "a call that was begun with a deadline"},
    "wire/handshake.py": {
        "sock.recv(1, socket.MSG_PEEK)": "the socket has a timeout: see the line above"
    },
    "distill/alone.py": {"over.wait()": "until a signal, which is its whole work"},
    "registry/serve.py": {"over.wait()": "the same"},
    "distill/server.py": {
        "self._changed.wait_for(lambda: self._closed or self._queue.first)": "a thread's next work"
    },
    "wire/listener.py": {"listener.accept()": "a thread's whole work: `close` ends it"},
    "worker/phases.py": {"answer.result()": "a pull or a push, which ends within --server_wait_s"},
    "worker/group/pusher.py": {
        "self._changed.wait_for(lambda: self._error or len(self._waiting) <= most)": (
            "its thread's exchanges and pushes end within their deadlines, or are its error"
        ),
        "self._changed.wait_for(lambda: self._waiting or self._closed)": "a thread's next work",
    },
    "worker/group/steps.py": {
        "self._catch_up.wait()": "for exchanges and pushes that end within their deadlines"
    },
    "ps/prepare.py": {"each.result()": "it is done"},
    "worker/group/row_exchange.py": {
        "ahead[1].result()": "a pull, which ends within --server_wait_s",
        "work.wait()": COLLECTIVE,
    },
    "worker/task_stream.py": {
        "self._changed.wait_for(lambda: len(self._items) < self._depth() or self._closed or "
        "item.lease.void)": "the consumer's pace: the keeper sees it where it hangs",
        "self._changed.wait_for(lambda: self._hungry or self._closed or lease.void)": "the same",
        "self._changed.wait_for(lambda: self._closed or lease.void)": "the same",
    },
    "runtime/nursery.py": {"adopted.wait()": "a thread that waits for the end of a process"},
    "runtime/local.py": {"child.wait()": "the same"},
    "worker/group/follower.py": {"self._answer.result()": "it is done"},
    "worker/group/process_group.py": {
        "made.result()": "the end of the round, at the latest, settles it"
    },
    "worker/group/sharded.py": {"work.wait()": COLLECTIVE},
    "adaptive/collective.py": {"todo.get()": "a daemon thread's next work"}
    | dict.fromkeys(
        (
            "self._group.allgather([given], [padded]).wait()",
            "self._group.allgather([sizes], [torch.tensor([len(data)])]).wait()",
            "self._group.broadcast(nbytes, source).wait()",
            "self._group.broadcast(tensor, source).wait()",
            "work.wait()",
        ),
        COLLECTIVE,
    ),
    "adaptive/gradient_noise_scale.py": {"pending.wait()": COLLECTIVE},
}


def waits_without_deadline(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        enough = WAITS.get(node.func.attr)
        if enough is None or any(k.arg in DEADLINES for k in node.keywords):
            continue
        if isinstance(node.func.value, ast.Constant):
            continue  # ", ".join
        if len(node.args) + len(node.keywords) < enough:
            yield ast.unparse(node)


def test_every_wait_has_a_deadline_or_a_reason():
    found = {
        str(path.relative_to(ROOT)): calls
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if (calls := set(waits_without_deadline(path)))
    }

    assert {name: set(reasons) for name, reasons in REASONS.items()} == found
