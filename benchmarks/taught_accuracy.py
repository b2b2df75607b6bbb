"""Few labels: a student alone, taught by a job's teachers, and by a teacher in its own process.

    edl data prepare bbc-news --out data; edl data prepare digits --out data
    python -m benchmarks.taught_accuracy --data data --encoder FOLDER --out edl-runs/taught

Of each draw of 5 labels a class: taught_text on BBC News, whose teacher knows those labels alone,
and taught_lenet on digits, whose teacher has seen all. Jobs are `edl train` with 2 workers and a
teacher, on servers and all-reduced; the two share a cache, and the first one (they take turns) has
asked the teachers about every record. The loop in one process is of plain torch. What is measured
is kept in OUT, and not measured again. Draws docs/taught-accuracy.svg and prints a table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks import page
from edl.common.identity import Identity
from edl.common.order import order
from edl.common.paths import job_folder
from edl.data.open import open_reader
from edl.distill import Rules, alone
from edl.distill.link import TeacherLink
from edl.distill.teachers import Teachers
from edl.model_zoo import taught_text, text_head
from edl.model_zoo.spec import Definition, load_definition

PICTURE = page.DOCS / "taught-accuracy.svg"
LABELS, MINIBATCH = 5, 32
WAYS = {
    "alone": "alone",
    "process": "teacher in the process",
    "ps": "edl train, servers",
    "allreduce": "edl train, all-reduce",
}
Curve = list[tuple[int, float]]  # minibatches learned from, accuracy


@dataclass(frozen=True)
class Case:
    """A definition with data; `few` and `labelled` are files of a draw."""

    title: str
    model_def: str
    few: Path
    labelled: Path
    validation: Path
    teacher_params: Mapping[str, str]
    epochs: int
    out: Path
    draw: int

    def definition(self) -> Definition:
        return load_definition(self.model_def, teacher_params=self.teacher_params)

    @property
    def told(self) -> str:
        """The parameters of the teacher, as a command has them."""
        return ",".join(f"{name}={value}" for name, value in self.teacher_params.items())


def text_case(data: Path, encoder: str, out: Path, draw: int) -> Case:
    """Draw labels of BBC News, and fit the teacher's head on them."""
    bbc = data / "bbc-news"
    if not (out / "head.safetensors").exists():
        arguments = ["--texts", str(bbc / "train"), "--encoder", encoder, "--out", str(out)]
        text_head.main([*arguments, "--labels", str(LABELS), "--seed", str(draw)])
    params = {"encoder": encoder, "head": str(out / "head.safetensors")}
    few, labelled = out / "texts.csv", out / "labelled.csv"
    title = "BBC News, 5 labels a class"
    return Case(title, "taught_text", few, labelled, bbc / "validation", params, 10, out, draw)


def pictures_case(data: Path, out: Path, draw: int) -> Case:
    """Draw labels of digits; the teacher is trained on all of them, once."""
    digits, taught = data / "digits", out.parent / "teacher"
    weights = taught / "model" / "model.safetensors"
    if not weights.exists():
        train("mnist_cnn", digits / "train.npz", 20, ["--seed", "1", "--output", str(taught)])
    out.mkdir(parents=True, exist_ok=True)
    few, labelled = out / "few.npz", out / "labelled.npz"
    with np.load(digits / "train.npz") as records:
        image, labels = records["image"], text_head.draw(records["label"], LABELS, draw)
    np.savez(few, image=image, label=labels)
    np.savez(labelled, image=image[labels >= 0], label=labels[labels >= 0])
    params = {"weights": str(weights)}
    validation, title = digits / "validation.npz", "Digits, 5 labels a class"
    return Case(title, "taught_lenet", few, labelled, validation, params, 10, out, draw)


def train(model_def: str, data: Path, epochs: int, more: Sequence[str]) -> list[dict[str, Any]]:
    """Train by `edl train`; return the job's evaluations."""
    name = f"taught-{os.getpid()}-{next(_NUMBERS)}"
    command = [
        *(sys.executable, "-m", "edl", "train", "--job_name", name, "--model_def", model_def),
        *("--training_data", str(data), "--num_epochs", str(epochs), "--num_workers", "2"),
        *("--minibatch_size", str(MINIBATCH), "--num_minibatches_per_task", "4", *more),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads((job_folder(name) / "result.json").read_text())
    assert not found.get("teaching", {}).get("untaught"), found["teaching"]
    evaluations: list[dict[str, Any]] = found["evaluations"]
    return evaluations


_NUMBERS = iter(range(1_000_000))


def by_job(case: Case, way: str) -> Curve:
    """Return the accuracies of a job."""
    more = ["--validation_data", str(case.validation), "--seed", str(case.draw)]
    data, epochs = case.few, case.epochs
    if way == "alone":
        data, steps = case.labelled, _steps(case)
        epochs = round(case.epochs * steps / -(-_records(data) // MINIBATCH))
        more += ["--evaluation_steps", str(steps), "--without_teachers", "hard_labels"]
    else:
        more += ["--strategy", way, "--num_teachers", "1", "--teacher_params", case.told]
        more += ["--teacher_batch_size", str(MINIBATCH), "--teacher_timeout_s", "300"]
        more += ["--teacher_wait_s", "600"]  # a machine of 2 cores that others share
        more += ["--teacher_cache", str(case.out / "answers")]
    found = train(case.model_def, data, epochs, more)
    return [(each["version"], each["metrics"]["accuracy"]) for each in found]


def in_process(case: Case, logits: torch.Tensor) -> Curve:
    """Train by a loop of plain torch, with what a teacher of this process says of all records."""
    definition, curve, steps = case.definition(), Curve(), 0
    torch.manual_seed(case.draw)
    student = definition.model()
    search = torch.optim.Adam(student.parameters(), lr=definition.optimizer().lr)
    features, labels = _fed(definition, case.few)
    seen, truth = _fed(definition, case.validation)
    for epoch in range(case.epochs):
        mixed = torch.from_numpy(order(case.draw, epoch, 1, len(labels), shuffle=True))
        student.train()
        for rows in mixed.split(MINIBATCH):
            outputs = student(_rows(features, rows))
            loss = definition.loss(outputs, labels[rows], logits[rows])
            search.zero_grad()
            loss.backward()
            search.step()
            steps += 1
        student.eval()
        with torch.no_grad():
            right = student(seen).argmax(dim=1) == truth
        curve.append((steps, float(right.double().mean())))
    return curve


class Remembered(torch.nn.Module):
    """An encoder that is asked once about each minibatch: of draws, the heads alone differ."""

    said: ClassVar[dict[tuple[str, ...], torch.Tensor]] = {}

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, texts: list[str]) -> torch.Tensor:
        key = tuple(texts)
        if key not in self.said:
            self.said[key] = self.encoder(texts)
        return self.said[key]


def taught(case: Case) -> tuple[torch.Tensor, float]:
    """Return a teacher's logits of all records in this process, and its own accuracy."""
    definition = case.definition()
    teacher = definition.teacher()
    if isinstance(teacher, taught_text.Teacher):
        teacher.encoder = Remembered(teacher.encoder).eval()

    def asked(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
        features, labels = _fed(definition, path)
        parts = torch.arange(len(labels)).split(MINIBATCH)
        with torch.no_grad():
            return torch.cat([definition.teach(teacher, _rows(features, p)) for p in parts]), labels

    logits, _ = asked(case.few)
    said, truth = asked(case.validation)
    return logits, float((said.argmax(dim=1) == truth).double().mean())


def same_bits(case: Case, minibatches: int = 4) -> float:
    """Return the share of the logits of `edl teach` with the bits of those of this process."""
    definition = case.definition()
    teacher, (features, _) = definition.teacher(), _fed(definition, case.few)
    asked = [_rows(features, p) for p in torch.arange(minibatches * MINIBATCH).split(MINIBATCH)]
    identity = Identity("bits")
    serving = subprocess.Popen(
        [
            *(sys.executable, "-m", "edl", "teach", case.model_def, "--batch_size", str(MINIBATCH)),
            *("--teacher_params", case.told),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            alone.VARIABLE: identity.to_variable(),
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        },
    )
    assert serving.stdout is not None
    found = re.search(r"[\d.]+:\d+", serving.stdout.readline())
    assert found, "edl teach says no address"
    student = Teachers(lambda address: TeacherLink(address, identity), Rules(timeout_s=300))
    student.update([found[0]])
    try:
        said = [student.answer(student.ask(each), MINIBATCH) for each in asked]
    finally:
        student.close()
        serving.terminate()
        serving.wait()
    with torch.no_grad():
        ours = [definition.teach(teacher, each) for each in asked]
    return float((torch.cat(said) == torch.cat(ours)).double().mean())


def of_words(case: Case) -> float:
    """Return the accuracy of TF-IDF (of all texts) with logistic regression (of the labels)."""
    texts, few = text_head.read(str(case.few))
    tests, truth = text_head.read(str(case.validation))
    known = np.flatnonzero(few >= 0)
    words = TfidfVectorizer(sublinear_tf=True, stop_words="english", ngram_range=(1, 2), min_df=2)
    seen = words.fit_transform(texts)
    fitted = LogisticRegression(C=100, max_iter=1000).fit(seen[known], few[known])
    return float((fitted.predict(words.transform(tests)) == truth).mean())


def _fed(definition: Definition, path: Path) -> tuple[Any, torch.Tensor]:
    reader = open_reader(str(path))
    (source,) = reader.sources()
    return definition.feed(reader.read(source.name, 0, source.records), "train")


def _rows(features: Any, rows: torch.Tensor) -> Any:
    if isinstance(features, dict):
        return {name: values[rows] for name, values in features.items()}
    return features[rows]


def _records(path: Path) -> int:
    return sum(source.records for source in open_reader(str(path)).sources())


def _steps(case: Case) -> int:
    """Return the minibatches of an epoch."""
    return -(-_records(case.few) // MINIBATCH)


def measure(out: Path, name: str, of: Callable[[], Any]) -> Any:
    """Return what was measured, or is now."""
    path = out / f"{name}.json"
    if not path.exists():
        value = of()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
        shown = value[-1][1] if isinstance(value, list) else value
        print(f"{out.parent.name} {out.name} {name}: {shown}", flush=True)
    return json.loads(path.read_text())


def run(case: Case) -> dict[str, Any]:
    """Measure all ways of a draw; return curves and other accuracies by name."""
    out, found = case.out, {}

    def process() -> Any:
        logits, accuracy = taught(case)
        (out / "teacher.json").write_text(json.dumps(accuracy))
        return in_process(case, logits)

    turns = ["ps", "allreduce"] if case.draw % 2 == 0 else ["allreduce", "ps"]
    for way in ["alone", *turns]:
        found[way] = measure(out, way, lambda way=way: by_job(case, way))
    found["process"] = measure(out, "process", process)
    if case.draw == 0:
        found["bits"] = measure(out, "bits", lambda: same_bits(case))
    found["teacher"] = json.loads((out / "teacher.json").read_text())
    if case.model_def == "taught_text":
        found["words"] = measure(out, "words", lambda: of_words(case))
    return found


def report(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table: the mean over the draws, and each draw."""
    rows = []
    names = {**WAYS, "teacher": "the teacher itself", "words": "TF-IDF, logistic regression"}
    for title, draws in found.items():
        for way in ("alone", "words", "process", "ps", "allreduce", "teacher"):
            if way not in draws[0]:
                continue
            each = [d[way][-1][1] if isinstance(d[way], list) else d[way] for d in draws]
            mean = f"{statistics.mean(each):.3f}"
            rows.append([title, names[way], mean, ", ".join(f"{value:.3f}" for value in each)])
        rows.append(
            [title, "logits with the bits of another process", f"{draws[0]['bits']:.3f}", ""]
        )
    return page.table(["data", "learned", "accuracy, mean", "draws"], rows)


def _tenths(curve: Curve) -> list[float]:
    """Return the accuracy at each tenth of the minibatches."""
    last = max(steps for steps, _ in curve)
    known = sorted(map(tuple, curve))
    return [[y for steps, y in known if 10 * steps <= part * last][-1] for part in range(1, 11)]


def drawn(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the picture: the mean over the draws at each evaluation."""
    panels = []
    for title, draws in found.items():
        lines = {}
        for way, name in WAYS.items():
            curves = [_tenths(each[way]) for each in draws]
            lines[name] = [
                (float(number), statistics.mean(at))
                for number, at in enumerate(zip(*curves, strict=True), 1)
            ]
        low = math.floor(10 * min(y for line in lines.values() for _, y in line)) / 10
        panels.append(
            page.Panel(f"Accuracy: {title}", "epochs (alone: as many minibatches)", lines, low=low)
        )
    return page.picture(panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="prepared bbc-news and digits")
    parser.add_argument("--encoder", required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(2)
    found: dict[str, list[dict[str, Any]]] = {}
    for draw in range(given.draws):
        for case in (
            pictures_case(given.data, given.out / "digits" / str(draw), draw),
            text_case(given.data, given.encoder, given.out / "bbc-news" / str(draw), draw),
        ):
            found.setdefault(case.title, []).append(run(case))
    print(report(found))
    PICTURE.write_text(drawn(found))


if __name__ == "__main__":
    main()
