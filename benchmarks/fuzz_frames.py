"""Malformed frames for the tensor plane: no crash, no hang, no unbounded memory.

`python -m benchmarks.fuzz_frames --frames 10000000 --live 200000`: seeded mutations of good frames
until the parser has refused so many; in the ratio of --live to --frames they go to a server's end,
too, with a store behind it, over a socketpair. `--atheris` hands over to libFuzzer, guided by
coverage (`pip install atheris`; its own options may follow, such as -max_total_time=60).

A frame either raises Malformed, or its arrays fill its body exactly. A server's end either answers
or hangs up once its peer has said all; whatever it was told, its buffers stay within their budget.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import random
import resource
import socket
import sys
import time
from collections.abc import Sequence

import numpy as np

from edl.common.errors import Unreachable
from edl.common.identity import Identity
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import SGD
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics
from edl.ps.wire import frames
from edl.ps.wire.frames import Head
from edl.ps.wire.plane import Plane
from edl.ps.wire.session import Session
from edl.wire.stream import Stream

BUDGET_NBYTES = 64 << 20
HANG_S = 30.0  # in one frame
GROWTH_NBYTES = 512 << 20  # of the resident size, over all frames
_ENDS = (frames.Malformed, Unreachable, OSError)  # of a connection, for `Plane.serve`
_SIZES = (0, 1, 7, 8, 255, 1 << 16, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def seeds() -> list[bytes]:
    """Return good frames of every operation, bodies included."""

    def frame(head: Head, *told: frames.Told) -> bytes:
        arrays, descriptors, nbytes = frames.describe(told)
        asked = head.op in (frames.PULL, frames.PUSH)
        ids = b"".join(
            np.arange(a.count).tobytes() for a in arrays if a.kind == frames.ROWS and asked
        )
        ids += bytes(frames.padded(len(ids)) - len(ids))
        head = head._replace(descriptors_nbytes=len(descriptors), body_nbytes=nbytes + len(ids))
        return frames.pack_head(head) + descriptors + ids + bytes(nbytes)

    rows, chunk, none = frames.ROWS, frames.CHUNK, frames.NONE
    push = Head(frames.PUSH, attempt=1, end=8)
    return [
        frame(Head(frames.PULL, frames.DENSE | frames.KNOWN), (rows, none, "t", 0, 5)),
        frame(Head(frames.PULL), (rows, none, "t", 0, 5)),
        frame(Head(frames.PULL), (rows, none, "t", 0, 5), (frames.CUT, none, "c", 0, 0)),
        frame(push, (rows, frames.FLOAT32, "t", 4, 5), (chunk, frames.FLOAT32, "w", 0, 7)),
        frame(push._replace(flags=frames.THEN), (rows, frames.SCALED_INT8, "t", 4, 5)),
        frame(push, (chunk, frames.SCALED_FLOAT16, "w", 0, 7)),
        frame(push._replace(flags=frames.LATER, body_region=1), (rows, frames.FLOAT32, "t", 4, 5)),
        frames.pack_head(Head(frames.MAP, body_nbytes=1 << 20, body_region=1)),
        frames.pack_head(Head(frames.UNMAP, body_region=1)),
        frame(Head(frames.PULLED), (rows, frames.FLOAT32, "", 4, 5), (rows, 2, "", 8, 1)),
        frame(Head(frames.PUSHED, frames.THEN), (chunk, frames.FLOAT32, "w", 0, 7)),
        frames.pack_error(3, "why"),
    ]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Return the frame with a few bytes or fields changed, its end cut off or lengthened."""
    data = bytearray(frame)
    for _ in range(rng.getrandbits(2) + 1):
        kind = rng.getrandbits(3)
        place = int(rng.random() * len(data))
        if kind < 4:
            data[place] ^= 1 << rng.getrandbits(3) % 8
        elif kind == 4:
            data[place] = rng.getrandbits(8)
        elif kind < 7:
            width = 1 << rng.getrandbits(2)
            value = _SIZES[int(rng.random() * len(_SIZES))] & (1 << 8 * width) - 1
            place -= place % width
            data[place : place + width] = value.to_bytes(width, "little")
        elif kind == 7 and rng.getrandbits(1):
            del data[place:]
            data += b"\0" * (not data)
        else:
            data += rng.randbytes(rng.getrandbits(6))
    return bytes(data)


def parse(data: bytes) -> bool:
    """Return whether the parser refuses it; what it takes keeps its promises."""
    if len(data) < frames.HEAD_NBYTES:
        return False  # a receiver waits for more
    try:
        head = frames.parse_head(data, frames.REQUESTS | frames.REPLIES)
        end = frames.HEAD_NBYTES + head.descriptors_nbytes
        if end > len(data):
            return False
        arrays = frames.parse_arrays(head, data[frames.HEAD_NBYTES : end])
    except frames.Malformed:
        return True
    ids = sum(8 * a.count for a in arrays if a.kind == frames.ROWS and head.op < frames.PULLED)
    values = sum(array.nbytes for array in arrays)
    assert frames.padded(ids) + values == head.body_nbytes, data.hex()
    assert head.body_nbytes <= frames.MAX_BODY_NBYTES
    assert len(arrays) <= frames.MAX_ARRAYS
    return False


class Live:
    """The server's end of a connection that is admitted, with a store behind it."""

    def __init__(self) -> None:
        store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
        spec = ModelSpec((DenseSpec("w", (7,)),), (TableSpec("t", 4),), SGD())
        store.init(spec, {("w", 0): np.zeros(7, np.float32)}, True)
        rows = {"t": (np.arange(5), np.zeros((5, 4), np.float32))}  # pulled by compiled code
        store.push(Span(1, 1, 0, 1), 0, Update({}, rows))
        self.plane = Plane(
            lambda: store,
            Metrics(0).calls,
            index=0,
            identity=Identity("fuzz"),
            budget_nbytes=BUDGET_NBYTES,
        )

    def tell(self, data: bytes) -> bytes:
        """Return what the server says to these bytes, after which nothing comes."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            stream = Stream(theirs)
            stream.arm(None)
            with contextlib.suppress(*_ENDS):
                Session(self.plane.serving, stream).run()
            theirs.shutdown(socket.SHUT_RDWR)
            told = ours.recv(1 << 16)
        buffers = self.plane.buffers
        assert buffers.kept == buffers.nbytes <= BUDGET_NBYTES, data.hex()
        if len(told) >= frames.HEAD_NBYTES:
            frames.parse_head(told, frames.REPLIES)
        return told


def run(num_frames: int, num_live: int, seed: int) -> str:
    """Mutate until `num_frames` were malformed; tell what came of it, how fast, in what memory."""
    rng = random.Random(seed)
    good = seeds()
    live = Live()
    for frame in good:
        live.tell(frame)
    resident = _resident_nbytes()
    began = time.monotonic()
    made = refused = told = answered = 0
    while refused < num_frames:
        data = mutated(good[made % len(good)], rng)
        made += 1
        refused += parse(data)
        if told * num_frames < made * num_live:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            told += 1
            answered += bool(live.tell(data))
    faulthandler.cancel_dump_traceback_later()
    grown = _resident_nbytes() - resident
    assert grown < GROWTH_NBYTES, f"{grown} bytes more"
    live.plane.close()
    wall_s = time.monotonic() - began
    return (
        f"{made:,} mutated frames (seed {seed}) in {wall_s:,.0f} s: the parser refused "
        f"{refused:,}. {told:,} went to a live server as well, which answered {answered:,} and "
        f"hung up on the others. No crash, no hang; {max(0, grown) >> 20} MiB more resident memory."
    )


def _resident_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _atheris(options: Sequence[str]) -> None:
    import atheris

    live = Live()
    for name in ("parse_head", "parse_arrays", "_parsed", "_allowed"):
        setattr(frames, name, atheris.instrument_func(getattr(frames, name)))

    def one(data: bytes) -> None:
        parse(data)
        live.tell(data)

    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=20_000, help="for each --frames")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    given, rest = parser.parse_known_args()
    logging.disable(logging.WARNING)
    if given.atheris:
        _atheris(rest)
    else:
        print(run(given.frames, given.live, given.seed))


if __name__ == "__main__":
    main()
