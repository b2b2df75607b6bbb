"""Resolve what a user said to one `JobSettings`, or to one sentence that says what to do.

The order: names, types, the bounds of each value, contradictions among values, then the outside
(paths, checkpoints, a job of that name that runs), so that a job which would fail after minutes of
work fails before its first process. Nothing is started, made or written here.
"""

from __future__ import annotations

import datetime
import difflib
import itertools
import math
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import claims, launched, paths, storage
from .contradictions import (
    Say,
    check_cluster,
    check_meaning,
    check_names,
    check_no_cluster,
    check_values,
)
from .errors import CheckpointError, UsageError
from .knobs import Knob
from .locations import DATA, absolute, is_file, is_local, parts
from .outside import check_outside, written
from .settings import JobSettings, knobs, spellings
from .values import bounds, convert

# What ElasticDL called them.
_FORMER_CHOICES = {"parameterserverstrategy": "ps", "allreducestrategy": "allreduce"}

_CHECKPOINTS = ("resume", "checkpoint_dir_for_init")  # which a job's name may stand for
# What a checkpoint's own definition is made with, and how it was given records.
_OF_DEFINITION = (
    *("model_def", "model_zoo", "model_params", "optimizer_params", "data_reader_params"),
)


def resolve(
    command: str, values: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> JobSettings:
    """Return the settings of `edl <command>`.

    `values` are given by name, text or typed; the rest are defaults.

    `origins` says where a value stands ("job.yaml:3"), for the errors. Raises UsageError.
    """
    say = _sayer(origins)
    if command == launched.COMMAND:
        script = typed(command, launched.with_nodes(dict(values)), origins)
        assert isinstance(script, launched.LaunchedSettings)
        check_names(script, say)
        launched.check(script, say)
        check_cluster(script, say)
        return script
    check_meaning(command, values, origins or {})
    settings = typed(command, values, origins)
    check_values(settings, say)
    if settings.runtime == "kubernetes":
        check_cluster(settings, say)
    else:
        check_no_cluster(values, origins or {})
        check_outside(settings, say)
    return settings


def typed(
    command: str, values: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> JobSettings:
    """Do as `resolve`, without its look at what is lacking, contradicts or lies outside."""
    say = _sayer(origins)
    of_script = command == launched.COMMAND
    known = launched.spellings() if of_script else spellings()
    rows = {knob.name: knob for knob in (launched.knobs() if of_script else knobs())}
    in_pods = str(values.get("runtime", "")).lower() == "kubernetes"
    given: dict[str, Any] = {}
    for spelled, value in _with_bounds(values, say).items():
        if spelled not in known:
            near = difflib.get_close_matches(spelled, known, n=1)
            hint = f"; did you mean --{near[0]}?" if near else "."
            if of_script and spelled in spellings():
                raise UsageError(f"{say(spelled)} is not of a script's job: leave it out.")
            raise UsageError(f"There is no setting --{spelled}{hint}")
        name = known[spelled]
        if name in _CHECKPOINTS and not in_pods:
            value = paths.named_job(str(value)) or value
        given[name] = _value(rows[name], value, say(name), in_pods)
    begun_from = given.get("checkpoint_dir_for_init")
    if begun_from and not in_pods and (Path(begun_from) / "settings.json").is_file():
        given["checkpoint_dir_for_init"] = checkpoint_dir_of(Path(begun_from))
    if given.get("resume") and not in_pods:
        if command != "train":
            raise UsageError(f"{say('resume')} is of `edl train`: give --checkpoint_dir_for_init.")
        given = _resumed(given, say)
    if begun_from and not in_pods and command != "train" and not given.get("model_def"):
        given |= _trained_by(given, say("checkpoint_dir_for_init"))
    if not given.get("job_name"):
        what = given.get("script" if of_script else "model_def", "")
        given["job_name"] = _made_up_name(command, what)
    if given.get("logger") and not given.get("run"):
        given["run"] = f"{given['job_name']}-{secrets.token_hex(4)}"
    if is_file(given.get("model_def", "")):
        given["model_def"] = _path(given["model_def"], say("model_def"), in_pods)
    return (launched.LaunchedSettings if of_script else JobSettings)(command=command, **given)


def _with_bounds(values: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Return the values, with MIN:MAX teachers as the two settings that these are.

    One number is no range, whatever the run had that is gone on with. Raises UsageError.
    """
    said = str(values.get("num_teachers", ""))
    if not said or ("max_teachers" in values and ":" not in said):
        return dict(values)
    if ":" not in said:
        return {**values, "max_teachers": 0}
    if "max_teachers" in values:
        raise UsageError(f"{say('num_teachers')} {said}: leave out {say('max_teachers')}.")
    least, most = bounds(said, say("num_teachers"))
    return {**values, "num_teachers": least, "max_teachers": most}


def _sayer(origins: Mapping[str, str] | None) -> Say:
    def say(name: str) -> str:
        where = (origins or {}).get(name, "")
        return f"--{name} ({where})" if where else f"--{name}"

    return say


def _resumed(given: dict[str, Any], say: Say) -> dict[str, Any]:
    """Return the settings of the run that wrote the checkpoint, under those that are given now."""
    said = say("resume")
    if given.get("checkpoint_dir_for_init"):
        raise UsageError(f"{said} and {say('checkpoint_dir_for_init')}: leave out one of them.")
    manifest = newest_checkpoint(given["resume"], said)
    directory, before = manifest.place, manifest.books.get("settings")
    if not before:
        raise UsageError(
            f"{said}: {directory} does not say with which settings it was written: give all of "
            "them, and --checkpoint_dir_for_init instead. With a script's state `edl launch "
            "--checkpoint_dir` goes on."
        )
    rows = {knob.name for knob in knobs()} - {"checkpoint_dir_for_init", "allow_changed_data"}
    kept = {name: value for name, value in before.items() if name in rows}
    folder = directory.parent
    try:
        writer = claims.running(folder)
        if writer is None and folder.name == "best":
            writer = claims.running(folder.parent)
    except OSError as error:
        raise UsageError(f"{said}: {error}.") from error
    if writer is not None:
        raise UsageError(
            f"{said}: the job {writer.job!r}, which writes to {folder}, is still running: "
            f"end it ({writer.how_to_end}) before its work is gone on with."
        )
    kept["job_name"] = _next_name(kept["job_name"])
    kept["run"] = _free_run(str(before.get("run") or ""))
    return {**kept, **given, "resume": str(directory)}


def _free_run(run: str) -> str:
    """Return the run of the loggers; "" where a job that runs writes to it: one job, one run."""
    taken = (written(folder).get("run") for folder in paths.running_jobs())
    return "" if run and run in taken else run


def _trained_by(given: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Return the definition of a checkpoint, as far as none is given; {}: it tells none.

    Raises UsageError where there is no checkpoint.
    """
    manifest = newest_checkpoint(given["checkpoint_dir_for_init"], said, checksums=False)
    before = manifest.books.get("settings") or {}
    return {
        name: before[name] for name in _OF_DEFINITION if before.get(name) and not given.get(name)
    }


def newest_checkpoint(path: str, said: str, *, checksums: bool = True) -> storage.Manifest:
    """Return the newest checkpoint of `path`, which `said` begins the error with.

    That is a checkpoint, a folder of them, or a job's folder. Raises UsageError.
    """
    folder = path
    if is_local(path) and (Path(path) / "settings.json").exists():
        folder = checkpoint_dir_of(Path(path))
    try:
        return storage.load(folder, checksums=checksums)
    except CheckpointError as error:
        if is_local(path) and paths.stands(Path(path)):
            raise UsageError(
                f"{said}: the job in {path} was cut off and has no checkpoint: give no other "
                "flags, and it goes on from its journal, with the settings that it has."
            ) from error
        if folder != path and not storage.find_checkpoints(folder):
            what = "runs" if paths.is_locked(Path(path)) else "never began, or is over"
            raise UsageError(
                f"{said}: the job in {path} {what}, and has written no checkpoint to {folder}: "
                "nothing of it can be gone on with. Give a job that has one, or begin anew without "
                f"{said}."
            ) from error
        raise UsageError(
            f"{said}: {error}. Name a checkpoint (version-...), a folder of checkpoints, or the "
            f"folder of a job (in {paths.jobs_folder()})."
        ) from error


def checkpoint_dir_of(job_folder: Path) -> str:
    """Return where the job in a folder writes its checkpoints. Raises UsageError."""
    return str(written(job_folder).get("checkpoint_dir") or job_folder / paths.CHECKPOINTS)


def _next_name(name: str) -> str:
    """Return the first of demo, demo-r1, demo-r2, ... that no folder has.

    Such a folder would be moved away.
    """
    base, number = re.fullmatch(r"(.*?)(?:-r(\d+))?", name).groups()  # type: ignore[union-attr]
    for run in itertools.count(int(number or 0) + 1):
        made = f"{base[:44]}-r{run}"
        if not paths.job_folder(made).exists():
            return made
    raise AssertionError("unreachable")


def _value(knob: Knob, value: object, said: str, in_pods: bool) -> Any:
    if knob.many:
        given = value if isinstance(value, list | tuple) else [value]
        texts = [each for part in given for each in convert(part, str, said).split(",")]
        texts = [text.strip() for text in texts if text]
        chosen = [_choice(knob, text, said) for text in texts] if knob.choices else texts
        return ",".join(dict.fromkeys(chosen))
    made = convert(value, knob.kind, said)
    if knob.choices:
        return _choice(knob, made, said)
    number = isinstance(made, int | float) and not isinstance(made, bool)
    if number and not made >= knob.minimum:
        raise UsageError(f"{said} is at least {knob.minimum}, not {made}.")
    if number and knob.most < made < math.inf:
        unit = " s" if isinstance(made, float) else ""
        raise UsageError(f"{said} is at most {knob.most}{unit}, not {made}.")
    if knob.path and not knob.is_file:
        each = parts(made) if knob.name in DATA.values() else [made]
        there = in_pods and knob.name != "cluster_spec"  # which whoever submits reads
        return ",".join(_path(part, said, there) for part in each)
    return made


def _choice(knob: Knob, made: str, said: str) -> str:
    lower = _FORMER_CHOICES.get(made.lower(), made.lower())
    choices = {choice.lower(): choice for choice in knob.choices}
    if lower not in choices:
        near = difflib.get_close_matches(lower, choices, n=1)
        hint = f"; did you mean {choices[near[0]]!r}?" if near else "."
        raise UsageError(f"{said} is one of {', '.join(knob.choices)}, not {made!r}{hint}")
    return choices[lower]


def _path(path: str, said: str, in_pods: bool) -> str:
    if in_pods and path and is_local(path) and not path.startswith("/"):
        raise UsageError(
            f"{said}: {path} is a path in the pods: write it from the root (/...), of the image or "
            "of a --volume."
        )
    return absolute(path)


def _made_up_name(command: str, model_def: str) -> str:
    stem = Path(model_def).stem if is_file(model_def) else model_def.rpartition(".")[2]
    stem = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:20].strip("-")
    now = datetime.datetime.now()
    return f"{stem or command}-{now:%m%d-%H%M%S}-{secrets.token_hex(1)}"
