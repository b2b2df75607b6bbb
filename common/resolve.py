"""From what a user said to one `JobSettings`, or one sentence that says what to do.

The order: names, types, the bounds of each value, contradictions among values, then the outside
(paths, checkpoints, a job of that name that runs), so that a job which would fail after minutes of
work fails before its first process. Nothing is started, made or written here.
"""

from __future__ import annotations

import datetime
import difflib
import glob
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import paths, storage
from .criterion import criterion
from .errors import CheckpointError, UsageError
from .settings import JobSettings, Knob, knobs, spellings
from .values import convert

# A DNS label, short enough that a replica's name, which begins with it, is one as well.
_JOB_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
# What ElasticDL called them.
_FORMER_CHOICES = {"parameterserverstrategy": "ps", "allreducestrategy": "allreduce"}

_OF_PUSHES = (
    "use_async",
    "grads_to_wait",
    "staleness",
    "lr_staleness_modulation",
    "get_model_steps",
    "pull_ahead",
    "push_window",
    "overlap_epochs",
    "gradient_wire",
    "deterministic",
)
_CHECKPOINTS = ("resume", "checkpoint_dir_for_init")  # which a job's name may stand for
_ANYWHERE = {"runtime", "min_workers"}  # of the group Cluster, but not only there

Say = Callable[[str], str]


def resolve(
    command: str, values: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> JobSettings:
    """The settings of `edl <command>`: `values` by name, text or typed; defaults for the rest.

    `origins` says where a value stands ("job.yaml:3"), for the errors. Raises UsageError.
    """

    say = _sayer(origins)
    _check_meaning(command, values, origins or {})
    settings = typed(command, values, origins)
    _check_names(settings, say)
    _check_consistency(settings, say)
    _check_checkpoints(settings, say)
    _check_inputs(settings, say)
    if settings.runtime == "kubernetes":
        _check_cluster(settings, say)
    else:
        _check_no_cluster(values, origins or {})
        _check_outside(settings, say)
    return settings


def typed(
    command: str, values: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> JobSettings:
    """As `resolve`, without its look at what is lacking, contradicts or lies outside."""
    say = _sayer(origins)
    known = spellings()
    rows = {knob.name: knob for knob in knobs()}
    in_pods = str(values.get("runtime", "")).lower() == "kubernetes"
    given: dict[str, Any] = {}
    for spelled, value in values.items():
        if spelled not in known:
            near = difflib.get_close_matches(spelled, known, n=1)
            hint = f"; did you mean --{near[0]}?" if near else "."
            raise UsageError(f"There is no setting --{spelled}{hint}")
        name = known[spelled]
        if name in _CHECKPOINTS and not in_pods:
            value = paths.named_job(str(value)) or value
        given[name] = _value(rows[name], value, say(name), in_pods)
    begun_from = given.get("checkpoint_dir_for_init")
    if begun_from and not in_pods and (Path(begun_from) / "settings.json").is_file():
        given["checkpoint_dir_for_init"] = str(_checkpoint_dir(Path(begun_from)))
    if given.get("resume") and not in_pods:
        if command != "train":
            raise UsageError(f"{say('resume')} is of `edl train`: give --checkpoint_dir_for_init.")
        given = _resumed(given, say)
    if not given.get("job_name"):
        given["job_name"] = _made_up_name(command, given.get("model_def", ""))
    if _is_file(given.get("model_def", "")):
        given["model_def"] = _path(given["model_def"], say("model_def"), in_pods)
    return JobSettings(command=command, **given)


def _sayer(origins: Mapping[str, str] | None) -> Say:
    def say(name: str) -> str:
        where = (origins or {}).get(name, "")
        return f"--{name} ({where})" if where else f"--{name}"

    return say


def _resumed(given: dict[str, Any], say: Say) -> dict[str, Any]:
    """The settings of the run that wrote the checkpoint, under those that are given now."""
    said = say("resume")
    if given.get("checkpoint_dir_for_init"):
        raise UsageError(f"{said} and {say('checkpoint_dir_for_init')}: leave out one of them.")
    directory = _newest_checkpoint(given["resume"], said)
    before = storage.read_manifest(directory, checksums=False).books.get("settings")
    if not before:
        raise UsageError(
            f"{said}: {directory} does not say with which settings it was written: give all of "
            "them, and --checkpoint_dir_for_init instead."
        )
    rows = {knob.name for knob in knobs()} - {"checkpoint_dir_for_init"}
    kept = {name: value for name, value in before.items() if name in rows}
    folder = directory.parent
    if writer := _writer(folder) or (folder.name == "best" and _writer(folder.parent)):
        raise UsageError(
            f"{said}: the job {writer!r}, which writes to {folder}, is still running: "
            f"end it (`edl stop {writer}`) before its work is gone on with."
        )
    kept["job_name"] = _next_name(kept["job_name"])
    return {**kept, **given, "resume": str(directory)}


def _newest_checkpoint(path: str, said: str) -> Path:
    """`path` is a checkpoint, a folder of them, or a job's folder. Raises UsageError."""
    folder = Path(path)
    if (folder / "settings.json").exists():
        folder = _checkpoint_dir(folder)
    try:
        return storage.load(folder).directory
    except CheckpointError as error:
        if paths.stands(Path(path)):
            raise UsageError(
                f"{said}: the job in {path} was cut off and has no checkpoint: give no other flags, "
                "and it goes on from its journal, with the settings that it has."
            ) from error
        raise UsageError(
            f"{said}: {error}. Name a checkpoint (version-...), a folder of checkpoints, or the "
            f"folder of a job (in {paths.jobs_folder()})."
        ) from error


def _writer(checkpoint_dir: Path) -> str:
    """The job that runs and writes its checkpoints there, if one does."""
    for folder in paths.running_jobs():
        if _checkpoint_dir(folder).resolve() == checkpoint_dir.resolve():
            return folder.name
    return ""


def _checkpoint_dir(job_folder: Path) -> Path:
    path = job_folder / "settings.json"
    try:
        written = json.loads(path.read_text()).get("checkpoint_dir")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    return Path(written or job_folder / "checkpoints")


def _next_name(name: str) -> str:
    """demo, demo-r1, demo-r2, ...: the first that no folder has, which would be moved away."""
    base, number = re.fullmatch(r"(.*?)(?:-r(\d+))?", name).groups()  # type: ignore[union-attr]
    for run in itertools.count(int(number or 0) + 1):
        made = f"{base[:44]}-r{run}"
        if not paths.job_folder(made).exists():
            return made
    raise AssertionError("unreachable")


def _value(knob: Knob, value: Any, said: str, in_pods: bool) -> Any:
    made = convert(value, knob.kind, said)
    if knob.choices:
        lower = _FORMER_CHOICES.get(made.lower(), made.lower())
        choices = {choice.lower(): choice for choice in knob.choices}
        if lower not in choices:
            near = difflib.get_close_matches(lower, choices, n=1)
            hint = f"; did you mean {choices[near[0]]!r}?" if near else "."
            raise UsageError(f"{said} is one of {', '.join(knob.choices)}, not {made!r}{hint}")
        return choices[lower]
    number = isinstance(made, int | float) and not isinstance(made, bool)
    if number and not made >= knob.minimum:
        raise UsageError(f"{said} is at least {knob.minimum}, not {made}.")
    if knob.path:
        parts = _parts(made) if knob.name in _DATA.values() else [made]
        there = in_pods and knob.name != "cluster_spec"  # which whoever submits reads
        return ",".join(_path(part, said, there) for part in parts)
    return made


def _path(path: str, said: str, in_pods: bool) -> str:
    if in_pods and path and _is_local(path) and not path.startswith("/"):
        raise UsageError(
            f"{said}: {path} is a path in the pods: write it from the root (/...), of the image or of "
            "a --volume."
        )
    return _absolute(path)


def _made_up_name(command: str, model_def: str) -> str:
    stem = Path(model_def).stem if _is_file(model_def) else model_def.rpartition(".")[2]
    stem = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:20].strip("-")
    now = datetime.datetime.now()
    return f"{stem or command}-{now:%m%d-%H%M%S}-{secrets.token_hex(1)}"


def _check_names(settings: JobSettings, say: Say) -> None:
    if not _JOB_NAME.fullmatch(settings.job_name):
        fitting = re.sub(r"[^a-z0-9]+", "-", settings.job_name.lower())[:50].strip("-")
        raise UsageError(
            f"{say('job_name')} is made of at most 50 lower-case letters, digits and dashes, "
            f"not {settings.job_name!r}{f'; {fitting!r} would do' if fitting else ''}."
        )
    if not settings.model_def:
        raise UsageError(
            "No --model_def: name a definition (`edl zoo list` shows them), or a file of your own "
            "(`edl zoo init` makes one)."
        )
    for name in settings.envs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"{say('envs')}: {name!r} is no name of an environment variable.")


def _check_group(settings: JobSettings, say: Say) -> None:
    """What has no meaning where each step is that of all workers."""
    strategy = settings.strategy
    if settings.command != "train":
        raise UsageError(
            f"{say('strategy')} {strategy} is a way to train; a checkpoint of it is evaluated and "
            "predicted with by servers, as any other: leave it out."
        )
    others = dict.fromkeys(_OF_PUSHES, "pushes to servers, each of one worker")
    if strategy == "hybrid":
        del others["staleness"]
        others |= dict.fromkeys(
            ("batch_rule", "lr_warmup_steps"), "a learning rate of all-reduce alone"
        )
        others["fully_shard"] = "a model without tables"
    for name, about in others.items():
        if getattr(settings, name) != getattr(JobSettings(), name):
            raise UsageError(
                f"{say(name)} is about {about}, which {say('strategy')} {strategy} has not: leave out "
                "one of them."
            )
    if settings.fully_shard and settings.compile:
        raise UsageError(
            f"{say('fully_shard')} shards the model module by module, and {say('compile')} makes one "
            "piece of it: leave out one of them."
        )


def _check_adaptive(settings: JobSettings, say: Say) -> None:
    """The bounds of a minibatch that follows the goodput."""
    rule, most = f"{say('batch_rule')} {settings.batch_rule}", settings.max_minibatch_size
    if settings.batch_rule != "adaptive":
        if most:
            raise UsageError(
                f"{say('max_minibatch_size')} is the bound of --batch_rule adaptive, not of {rule}: "
                "give that, or leave it out."
            )
        return
    if not most:
        raise UsageError(
            f"{rule} lets the minibatch grow: say with --max_minibatch_size how far "
            f"(from --minibatch_size {settings.minibatch_size})."
        )
    if most < settings.minibatch_size:
        raise UsageError(
            f"{say('max_minibatch_size')} {most} is below {say('minibatch_size')} "
            f"{settings.minibatch_size}, where the minibatch begins: give at least that."
        )
    tasks = settings.minibatches_per_task
    if most > settings.minibatch_size * tasks:
        raise UsageError(
            f"{say('max_minibatch_size')} {most} does not fit into a task of {tasks} minibatches of "
            f"{settings.minibatch_size}: give --num_minibatches_per_task "
            f"{-(-most // settings.minibatch_size)} or more."
        )
    if settings.fully_shard:
        raise UsageError(
            f"{rule} measures whole gradients, which no worker has with {say('fully_shard')}: leave "
            "out one of them."
        )
    if settings.lr_warmup_steps:
        raise UsageError(
            f"{say('lr_warmup_steps')} has no effect with {rule}, whose learning rate follows the "
            "noise of the gradients at each step: leave it out."
        )


def _check_consistency(settings: JobSettings, say: Say) -> None:
    """Contradictions about who keeps the parameters and when they change."""
    if settings.strategy != "allreduce" and settings.num_ps < 1:
        raise UsageError(
            f"{say('strategy')} {settings.strategy} keeps parameters on servers, but {say('num_ps')} is 0: "
            "give --num_ps 1 or more."
        )
    if settings.strategy != "ps":
        _check_group(settings, say)
        _check_adaptive(settings, say)
    else:
        for name in (
            "fully_shard",
            "local_batch_size",
            "batch_rule",
            "max_minibatch_size",
            "lr_warmup_steps",
        ):
            if getattr(settings, name) != getattr(JobSettings(), name):
                raise UsageError(
                    f"{say(name)} is about minibatches of all workers together; with "
                    f"{say('strategy')} ps each has its own: leave it out."
                )
    if settings.use_async and settings.grads_to_wait > 1:
        raise UsageError(
            f"{say('use_async')} applies each push on arrival, but {say('grads_to_wait')} "
            f"{settings.grads_to_wait} waits for several: leave out one of them."
        )
    if settings.lr_staleness_modulation and not settings.use_async:
        raise UsageError(
            f"{say('lr_staleness_modulation')} has no effect in sync mode, where no stale gradient "
            "is applied: add --use_async, or leave it out."
        )
    if settings.get_model_steps > 1 and not settings.use_async:
        raise UsageError(
            f"{say('get_model_steps')} {settings.get_model_steps} would compute on old parameters, "
            "which sync mode refuses: add --use_async, or leave it out."
        )
    if settings.pull_ahead not in (0, 1):
        raise UsageError(
            f"{say('pull_ahead')} is 0 or 1 (deeper hurts convergence), not {settings.pull_ahead}."
        )
    if settings.push_window > 1 and not settings.pull_ahead:
        raise UsageError(
            f"{say('push_window')} {settings.push_window} has no effect without --pull_ahead 1, "
            "where a pull waits for the push before it: add that, or leave it out."
        )
    if settings.gradient_wire != "float32" and settings.transport == "grpc":
        raise UsageError(
            f"{say('gradient_wire')} {settings.gradient_wire} saves no bytes over {say('transport')} "
            "grpc, which sends float32: leave out one of them."
        )
    if settings.deterministic:
        _check_deterministic(settings, say)
    if settings.port > 65535:
        raise UsageError(f"{say('port')} is at most 65535, not {settings.port}: 0 takes any.")
    for name in (
        "lease_s",
        "drain_grace_s",
        "master_timeout_s",
        "server_timeout_s",
        "server_wait_s",
    ):
        if not 0 < getattr(settings, name) < float("inf"):
            raise UsageError(f"{say(name)} is a time in seconds above 0.")
    if not 0 <= settings.hang_s < float("inf"):
        raise UsageError(f"{say('hang_s')} is a time in seconds; 0: nothing counts as a hang.")
    if not settings.num_epochs and not settings.max_steps and settings.command == "train":
        raise UsageError(
            f"{say('num_epochs')} 0 trains without end: say how many, or give --max_steps."
        )
    if not 0 <= settings.snapshot_s < float("inf"):
        raise UsageError(f"{say('snapshot_s')} is a time in seconds; 0: no snapshots.")


def _check_deterministic(settings: JobSettings, say: Say) -> None:
    """Each gradient is to be computed on exactly one known version, by one thread."""
    needed = {
        "pull_ahead": (0,),
        "push_window": (1,),
        "get_model_steps": (1,),
        "worker_threads": (0, 1),
        "gradient_wire": ("float32",),
    }
    for name, fitting in needed.items():
        if (value := getattr(settings, name)) not in fitting:
            raise UsageError(
                f"{say('deterministic')} computes each gradient on exactly one recorded version, "
                f"which {say(name)} {value} does not allow: leave out one of them."
            )


def _check_checkpoints(settings: JobSettings, say: Say) -> None:
    for name in ("output", "checkpoint_dir"):
        if not _is_local(getattr(settings, name)):
            raise UsageError(
                f"{say(name)} is a folder, not a URL ({getattr(settings, name)}): mount it, or copy from "
                "a folder afterwards."
            )
    for name in ("checkpoint_steps", "keep_checkpoint_max", "keep_best", "early_stopping"):
        if getattr(settings, name) and not settings.keeps_checkpoints:
            raise UsageError(
                f"{say(name)} needs a folder that outlives the pods: give --checkpoint_dir on a "
                "--volume, or a --job_volume."
            )
    for name, patience in (("keep_best", False), ("early_stopping", True)):
        if not (text := getattr(settings, name)):
            continue
        criterion(text, say(name), patience)
        if settings.command == "train" and not settings.validation_data:
            raise UsageError(
                f"{say(name)} goes by the evaluations, which need data: give --validation_data as well."
            )
    writes = settings.keep_last or settings.checkpoint_steps or settings.keep_best
    if settings.checkpoint_dir and not (writes or settings.early_stopping):
        raise UsageError(
            f"--no_keep_last: nothing would be written to {say('checkpoint_dir')}: leave out one of "
            "them, or give --checkpoint_steps or --keep_best."
        )
    if settings.evaluation_steps and settings.command == "train" and not settings.validation_data:
        raise UsageError(
            f"{say('evaluation_steps')} needs data to evaluate on: give --validation_data as well."
        )


_DATA = {"train": "training_data", "evaluate": "validation_data", "predict": "prediction_data"}


def _check_inputs(settings: JobSettings, say: Say) -> None:
    needed = [_DATA[settings.command]]
    if settings.command != "train":
        needed.append("checkpoint_dir_for_init")
    for name in needed:
        if not getattr(settings, name):
            raise UsageError(f"`edl {settings.command}` needs --{name}.")


def _check_cluster(settings: JobSettings, say: Say) -> None:
    """What can be told from outside: paths are of the pods, and looked at by the master there."""
    if not settings.image_name:
        raise UsageError(
            f"{say('runtime')} kubernetes runs pods: name the --image_name that they run, with edl and "
            "the definition in it (`edl zoo build` makes one)."
        )
    if settings.min_workers > settings.num_workers:
        raise UsageError(
            f"{say('min_workers')} {settings.min_workers} is more than {say('num_workers')} "
            f"{settings.num_workers}: no task would ever be leased."
        )


def _check_meaning(command: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """A flag that the command has no use for; a job file may be for several commands."""
    rows = {knob.name: knob for knob in knobs()}
    for spelled in values.keys() - origins.keys():
        knob = rows.get(spellings().get(spelled, ""))
        if knob is None or command in knob.of or knob.name == "resume":
            continue
        instead = "leave it out"
        if knob.name == "checkpoint_dir":
            instead = "the checkpoint to begin from is named by --checkpoint_dir_for_init"
        of = " and ".join(f"`edl {each}`" for each in knob.of)
        raise UsageError(f"--{spelled} is of {of}, not of `edl {command}`: {instead}.")


def _check_no_cluster(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """A flag of clusters is no flag of this machine; a job file may be for both."""
    rows = {knob.name: knob for knob in knobs()}
    for spelled in values.keys() - origins.keys():
        knob = rows[spellings()[spelled]]
        if knob.group == "Cluster" and knob.name not in _ANYWHERE:
            raise UsageError(
                f"--{spelled} is of jobs in a cluster: add --runtime kubernetes, or say `edl submit`."
            )


def _check_outside(settings: JobSettings, say: Say) -> None:
    if _is_file(settings.model_def) and not Path(settings.model_def).is_file():
        raise UsageError(
            f"{say('model_def')}: there is no file {settings.model_def}; `edl zoo list` shows the "
            "definitions that are there."
        )
    if settings.model_zoo and not Path(settings.model_zoo).is_dir():
        raise UsageError(
            f"{say('model_zoo')}: {settings.model_zoo} is no folder; `edl zoo init` makes one."
        )
    for name in _DATA.values():
        for path in _parts(getattr(settings, name)):
            _check_readable(path, say(name))
    for name in ("output", "checkpoint_dir", "snapshot_dir"):
        path = getattr(settings, name)
        if path and _is_local(path) and (why := paths.why_unwritable(path)):
            raise UsageError(f"{say(name)}: {why}: choose another folder.")
    own = paths.job_folder(settings.job_name)
    if settings.resume and Path(settings.resume).is_relative_to(own.absolute()):
        raise UsageError(
            f"{say('job_name')}: the checkpoint {settings.resume} lies in the folder of a job of "
            "that name, which the new one would replace: choose another name, or give none."
        )
    _check_unused(settings, say)
    if settings.checkpoint_dir_for_init:
        _check_checkpoint(settings.checkpoint_dir_for_init, say("checkpoint_dir_for_init"))
    if paths.is_locked(own):
        raise UsageError(
            f"{say('job_name')}: a job named {settings.job_name!r} is running already: choose "
            f"another name, watch it (`edl status {settings.job_name}`) or end it "
            f"(`edl stop {settings.job_name}`)."
        )


def _check_unused(settings: JobSettings, say: Say) -> None:
    """Checkpoints of two jobs in one folder would be taken for each other's."""
    folder = settings.checkpoint_dir
    begun_from = settings.resume or settings.checkpoint_dir_for_init
    there = storage.find_checkpoints(folder) if folder else []
    if settings.command != "train" or not there:
        return
    if begun_from and Path(begun_from).resolve().is_relative_to(Path(folder).resolve()):
        if Path(begun_from).resolve() in (Path(folder).resolve(), there[-1].resolve()):
            return
        newest = storage.latest(folder)  # the last one may be torn
        if newest is not None and newest.directory.resolve() == Path(begun_from).resolve():
            return
        raise UsageError(
            f"{say('checkpoint_dir')}: {folder} holds newer checkpoints than {begun_from}, and those of "
            f"this job would be taken for older ones: name another folder, or remove the newer."
        )
    raise UsageError(
        f"{say('checkpoint_dir')}: {folder} holds the checkpoints of an earlier job: go on with "
        f"it (`edl train --resume {folder}`), begin anew from its parameters "
        f"(--checkpoint_dir_for_init {folder}), name another folder, or remove it."
    )


def _check_checkpoint(path: str, said: str) -> None:
    """One of the checkpoints there is whole. Checksums are for the servers, which read it all."""
    problem: CheckpointError | None = None
    for directory in reversed(storage.find_checkpoints(path) or [Path(path)]):
        try:
            storage.read_manifest(directory, checksums=False)
        except CheckpointError as error:
            problem = problem or error
        else:
            return
    raise UsageError(
        f"{said}: {problem}. Name a folder of checkpoints (the --checkpoint_dir of an earlier job), "
        "or one version-... in it."
    ) from problem


def _check_readable(path: str, said: str) -> None:
    if not path or not _is_local(path):
        return
    if not os.path.lexists(path) and glob.has_magic(path):
        if not glob.glob(path, recursive=True):
            raise UsageError(f"{said}: no file matches {path}.")
    elif not os.path.exists(path):
        raise UsageError(f"{said}: there is no file or folder {path}.")
    elif not os.access(path, os.R_OK):
        raise UsageError(f"{said}: {path} cannot be read: check its permissions.")


def _parts(path: str) -> list[str]:
    """A list of paths with commas between, unless there is a file of that very name."""
    return [path] if os.path.exists(path) else [part.strip() for part in path.split(",")]


def _is_file(model_def: str) -> bool:
    return model_def.endswith(".py") or "/" in model_def


def _is_local(path: str) -> bool:
    return "://" not in path


def _absolute(path: str) -> str:
    path = path.strip()
    return os.path.abspath(os.path.expanduser(path)) if path and _is_local(path) else path
