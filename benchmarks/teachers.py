"""Teachers beside a student: what a service costs and what it is worth.

    python -m benchmarks.teachers [--rounds N] [--only nop student device]

*nop*: a teacher in a process of its own that answers at once, 784 float32 a row as of a picture of
28 x 28, read by DistillReader in order. Paddle EDL's DistillReader gave 9 to 28 thousand samples/s
so, with a NOP in place of its serving client (shared reference; on 2 cores).

*student*: plain torch, a small convolutional network on pictures of 28 x 28; two teachers, each a
device that takes TEACHER_S for a batch (sleeping: its work is not this machine's); and a cache, in
which each batch is found by its features. With a teacher that computes on this machine, CPU seconds
beside both in one process.

*device*: a device that takes STUDENT_S for a step of the student and TEACHER_S for the teacher's
answer: one after the other on the same device, and the same teacher on devices of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import measure
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.alone import serve
from edl.distill.frames import Part
from edl.distill.tree import values_of
from edl.model_zoo import mnist_cnn
from edl.nn.distill import hinton
from edl.registry.identity import VARIABLE

SAMPLES, WIDTH = 200_000, 784
BATCH, BATCHES = 64, 60
STUDENT_BATCHES, STUDENT_CHANNELS = 150, 32  # a run of 6 s, whose connections are made anew
STUDENT_S, TEACHER_S = 0.010, 0.025
DEVICES = 4
CLASSES = 10


class Nop:
    """A teacher that answers at once."""

    fingerprint = "nop"

    def __call__(self, _parts: Sequence[Part], rows: int) -> list[Part]:
        return [Part("/logits", np.zeros((rows, 1), np.float32))]


class Device:
    """A teacher on a device that takes `seconds` for a batch."""

    fingerprint = "device"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, _parts: Sequence[Part], rows: int) -> list[Part]:
        time.sleep(self._seconds)
        return [Part("/logits", np.zeros((rows, CLASSES), np.float32))]


class Computed:
    """A teacher that computes on this machine."""

    fingerprint = "computed"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = mnist_cnn.model().eval()

    @torch.no_grad()
    def __call__(self, parts: Sequence[Part], _rows: int) -> list[Part]:
        return [Part("/logits", self.model(values_of(parts)).numpy())]


KINDS = {"nop": Nop, "device": lambda: Device(TEACHER_S), "computed": Computed}


@contextlib.contextmanager
def teachers(kind: str, number: int, size: int) -> Iterator[tuple[str, list[int]]]:
    """Run so many teachers in processes; yield their addresses and pids."""
    os.environ[VARIABLE] = Identity("benchmark").to_variable()
    command = [sys.executable, "-m", "benchmarks.teachers", "--serve", kind, "--size", str(size)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    try:
        lines = [process.stdout.readline() for process in started if process.stdout]
        yield ",".join(line.split()[-1] for line in lines), [each.pid for each in started]
    finally:
        for process in started:
            process.terminate()
            process.wait()


def reader(address: str, cache: str = "") -> DistillReader:
    rules = Rules(window=2 * DEVICES + 2)
    made = DistillReader(["image", "label"], ["logits"], rules=rules, cache=cache)
    if address:
        made.set_fixed_teacher(address)
    return made


def nop(rounds: int) -> None:
    """Read through a teacher that answers at once."""
    images = np.random.default_rng(0).normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    labels = np.arange(SAMPLES)

    def read(size: int, address: str, pids: list[int], lists: bool) -> measure.Sample:
        count = min(SAMPLES, 2000 * size)
        it = reader(address)
        if lists:
            samples = list(zip(images[:count], labels[:count], strict=True))
            it.set_sample_list_generator(
                lambda: (samples[n : n + size] for n in range(0, count, size))
            )
        else:
            places = [slice(n, n + size) for n in range(0, count, size)]
            it.set_batch_generator(lambda: ((images[p], labels[p]) for p in places))

        def work() -> None:
            seen = 0
            for batch in it():
                first = batch[0][1] if lists else batch[1][0]
                assert first == seen
                seen += len(batch if lists else batch[0])
            assert seen == count

        return measure.sample(count, work, pids)

    with teachers("nop", 1, 1024) as (address, pids):
        found = measure.alternate(
            {
                f"{kind} of {size}": lambda size=size, lists=lists: read(size, address, pids, lists)
                for size in (16, 64, 256)
                for kind, lists in (("batches", False), ("lists of samples", True))
            },
            rounds,
        )
    print(measure.table(found, ["batches of 16"], ("k samples/s", 1e-3), ("us a sample", 1e6)))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[Tensor]) -> None:
    """Make one step of the student; the last of the batch is the teacher's answer, or None."""
    images, labels, logits = batch
    optimizer.zero_grad()
    hinton(model(images), labels, logits).backward()
    optimizer.step()


def pictures(batches: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [
        (torch.rand(BATCH, 1, 28, 28), torch.randint(CLASSES, (BATCH,))) for _ in range(batches)
    ]


def trained(batches: Callable[[], Iterator[Sequence[Tensor]]], pids: list[int]) -> measure.Sample:
    """Train the student on batches once."""
    torch.manual_seed(0)
    model = mnist_cnn.model(channels=STUDENT_CHANNELS)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        for batch in batches():
            step(model, optimizer, batch)

    return measure.sample(STUDENT_BATCHES * BATCH, work, pids)


def student(rounds: int) -> None:
    """Train a student with and without teachers."""
    torch.set_num_threads(1)
    data = pictures(STUDENT_BATCHES)
    here = Computed()

    def alone() -> Iterator[Sequence[Tensor]]:
        return ((image, label, None) for image, label in data)  # type: ignore[misc]

    logits = torch.zeros(BATCH, CLASSES)

    def known() -> Iterator[Sequence[Tensor]]:
        return ((image, label, logits) for image, label in data)

    def in_process() -> Iterator[Sequence[Tensor]]:
        for image, label in data:
            with torch.no_grad():
                logits = here.model(image)
            yield image, label, logits

    with (
        tempfile.TemporaryDirectory() as folder,
        teachers("device", 2, BATCH) as (devices, _),
        teachers("computed", 1, BATCH) as (computed, pids),
    ):
        for _ in reader(computed, folder).wrap(data):
            pass  # the epoch that fills the cache
        found = measure.alternate(
            {
                "no teacher": lambda: trained(alone, []),
                "no teacher, with the KL": lambda: trained(known, []),
                "two devices": lambda: trained(lambda: reader(devices).wrap(data), []),
                "from the cache": lambda: trained(lambda: reader("", folder).wrap(data), []),
                "teacher in the process": lambda: trained(in_process, []),
                "teacher in another process": lambda: trained(
                    lambda: reader(computed).wrap(data), pids
                ),
            },
            rounds,
        )
    bases = ["no teacher", "no teacher, with the KL", "teacher in the process"]
    print(measure.table(found, bases, ("samples/s", 1.0), ("CPU ms a sample", 1e3)))
    both = found["teacher in the process"], found["teacher in another process"]
    cost = measure.ratio(both[1], both[0], lambda s: s.cost)
    print(f"\nCPU of the service, times both in one process: {cost}")


def device(rounds: int) -> None:
    """Have the same device for both, and devices of the teacher's own."""
    data = pictures(BATCHES)

    def same() -> measure.Sample:
        def work() -> None:
            for _ in data:
                time.sleep(TEACHER_S)
                time.sleep(STUDENT_S)

        return measure.sample(BATCHES * BATCH, work)

    def apart(address: str, pids: list[int]) -> measure.Sample:
        def work() -> None:
            for _ in reader(address).wrap(data):
                time.sleep(STUDENT_S)

        return measure.sample(BATCHES * BATCH, work, pids)

    with teachers("device", DEVICES, BATCH) as (address, pids):
        found = measure.alternate(
            {"the same device": same, f"{DEVICES} more devices": lambda: apart(address, pids)},
            rounds,
        )
    print(measure.table(found, ["the same device"], ("samples/s", 1.0), ("CPU ms a sample", 1e3)))
    limit = (STUDENT_S + TEACHER_S) / max(STUDENT_S, TEACHER_S / DEVICES)
    print(f"\nAt most, if nothing but the devices took time: {limit:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teachers")
    parser.add_argument("--rounds", type=int, default=measure.ROUNDS)
    parser.add_argument("--only", nargs="+", choices=("nop", "student", "device"))
    parser.add_argument("--serve", choices=[*KINDS])
    parser.add_argument("--size", type=int, default=0)
    given = parser.parse_args()
    if given.serve:
        torch.set_num_threads(1)
        serve(
            KINDS[given.serve](),  # type: ignore[operator]
            {"fingerprint": hashlib.sha256(given.serve.encode()).hexdigest()},
            port=0,
            max_batch_size=given.size,
            max_queue_delay_s=0.0,
            say=lambda text: print(text, flush=True),
        )
        return
    for part in (nop, student, device):
        if not given.only or part.__name__ in given.only:
            print(f"\n### {part.__doc__}\n")
            part(given.rounds)
    print(f"\n{measure.machine()}\n- load: {measure.load()}")


if __name__ == "__main__":
    main()
