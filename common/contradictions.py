"""Contradictions among the settings of a job: each is one sentence that says what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .criterion import criterion
from .errors import UsageError
from .locations import DATA, is_local
from .settings import JobSettings, knobs, spellings
from .teacher_address import Served, parse, split_addresses
from .values import check_namespace

# A DNS label, short enough that a replica's name, which begins with it, is one as well.
JOB_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
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
_ANYWHERE = {"runtime", "min_workers", "preemptible"}  # of the group Cluster, but not only there

Say = Callable[[str], str]  # a setting -> how errors name it, with where it was said


def check_meaning(command: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse a flag that the command has no use for; a job file may be for several commands."""
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


def check_values(settings: JobSettings, say: Say) -> None:
    """Refuse what the settings alone show to be impossible. Raises UsageError."""
    check_names(settings, say)
    if not settings.model_def:
        if settings.command != "train":  # a checkpoint would say it
            _check_inputs(settings)
        begun = settings.checkpoint_dir_for_init
        trained = f"; `edl checkpoint show {begun}` tells the checkpoint's" if begun else ""
        raise UsageError(
            "No --model_def: name a definition (`edl zoo list` shows them), or a file of your own "
            f"(`edl zoo init` makes one){trained}."
        )
    _check_consistency(settings, say)
    _check_checkpoints(settings, say)
    _check_deltas(settings, say)
    _check_inputs(settings)


def check_cluster(settings: JobSettings, say: Say) -> None:
    """Refuse what a cluster cannot run. Paths are of the pods: the master looks at them there."""
    if not settings.image_name:
        raise UsageError(
            f"{say('runtime')} kubernetes runs pods: name the --image_name that they run, with edl "
            "and the definition in it (`edl zoo build` makes one)."
        )
    if settings.logger:
        raise UsageError(
            f"{say('logger')} is of jobs on this machine, beside whose master a process writes: "
            "leave it out; a job in a cluster has TensorBoard's scalars under --output."
        )
    if settings.min_workers > settings.num_workers:
        raise UsageError(
            f"{say('min_workers')} {settings.min_workers} is more than {say('num_workers')} "
            f"{settings.num_workers}: no task would ever be leased."
        )


def check_no_cluster(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse flags of clusters on this machine; a job file may be for both."""
    rows = {knob.name: knob for knob in knobs()}
    for spelled in values.keys() - origins.keys():
        knob = rows[spellings()[spelled]]
        if knob.group == "Cluster" and knob.name not in _ANYWHERE:
            raise UsageError(
                f"--{spelled} is of jobs in a cluster: add --runtime kubernetes, or say `edl "
                "submit`."
            )


def check_names(settings: JobSettings, say: Say) -> None:
    """Refuse names that a job, or a variable of its environment, cannot have."""
    if not JOB_NAME.fullmatch(settings.job_name):
        fitting = re.sub(r"[^a-z0-9]+", "-", settings.job_name.lower())[:50].strip("-")
        raise UsageError(
            f"{say('job_name')} is made of at most 50 lower-case letters, digits and dashes, "
            f"not {settings.job_name!r}{f'; {fitting!r} would do' if fitting else ''}."
        )
    check_namespace(settings.namespace, say("namespace"))
    for name in settings.envs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"{say('envs')}: {name!r} is no name of an environment variable.")


def _check_group(settings: JobSettings, say: Say) -> None:
    """Refuse what has no meaning where each step is that of all workers."""
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
                f"{say(name)} is about {about}, which {say('strategy')} {strategy} has not: leave "
                "out one of them."
            )
    if settings.precision == "fp16" and (strategy == "hybrid" or settings.batch_rule == "adaptive"):
        other = "strategy" if strategy == "hybrid" else "batch_rule"
        raise UsageError(
            f"{say('precision')} fp16 scales gradients, and {say(other)} "
            f"{getattr(settings, other)} takes them as they are: give --precision bf16, which "
            "needs no scale."
        )
    if settings.fully_shard and settings.compile:
        raise UsageError(
            f"{say('fully_shard')} shards the model module by module, and {say('compile')} makes "
            "one piece of it: leave out one of them."
        )


def _check_adaptive(settings: JobSettings, say: Say) -> None:
    """Check the bounds of a minibatch that follows the goodput."""
    rule, most = f"{say('batch_rule')} {settings.batch_rule}", settings.max_minibatch_size
    if settings.batch_rule != "adaptive":
        if most:
            raise UsageError(
                f"{say('max_minibatch_size')} is the bound of --batch_rule adaptive, not of "
                f"{rule}: give that, or leave it out."
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
            f"{say('max_minibatch_size')} {most} does not fit into a task of {tasks} minibatches "
            f"of {settings.minibatch_size}: give --num_minibatches_per_task "
            f"{-(-most // settings.minibatch_size)} or more."
        )
    if settings.fully_shard:
        raise UsageError(
            f"{rule} measures whole gradients, which no worker has with {say('fully_shard')}: "
            "leave out one of them."
        )
    if settings.lr_warmup_steps:
        raise UsageError(
            f"{say('lr_warmup_steps')} has no effect with {rule}, whose learning rate follows the "
            "noise of the gradients at each step: leave it out."
        )


def _check_consistency(settings: JobSettings, say: Say) -> None:
    """Refuse contradictions about who keeps the parameters and when they change."""
    if settings.strategy != "allreduce" and settings.num_ps < 1:
        raise UsageError(
            f"{say('strategy')} {settings.strategy} keeps parameters on servers, but "
            f"{say('num_ps')} is 0: give --num_ps 1 or more."
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
    _check_pushes(settings, say)
    if settings.deterministic:
        _check_deterministic(settings, say)
    _check_numbers(settings, say)


def _check_pushes(settings: JobSettings, say: Say) -> None:
    """Refuse contradictions about what a push waits for and a pull brings."""
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
            f"{say('gradient_wire')} {settings.gradient_wire} saves no bytes over "
            f"{say('transport')} grpc, which sends float32: leave out one of them."
        )


def _check_numbers(settings: JobSettings, say: Say) -> None:
    """Check the times, the port, and that the job ends."""
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
    _check_teachers(settings, say)
    if not 0 <= settings.hang_s < float("inf"):
        raise UsageError(f"{say('hang_s')} is a time in seconds; 0: nothing counts as a hang.")
    if not settings.num_epochs and not settings.max_steps and settings.command == "train":
        raise UsageError(
            f"{say('num_epochs')} 0 trains without end: say how many, or give --max_steps."
        )
    if not 0 <= settings.snapshot_s < float("inf"):
        raise UsageError(f"{say('snapshot_s')} is a time in seconds; 0: no snapshots.")


def _check_teachers(settings: JobSettings, say: Say) -> None:
    """Check what is said of teachers."""
    for name in ("teacher_wait_s", "teacher_timeout_s"):
        if not 0 < getattr(settings, name) < float("inf"):
            raise UsageError(f"{say(name)} is a time in seconds above 0.")
    if not 0 <= settings.teacher_queue_delay_s < float("inf"):
        raise UsageError(f"{say('teacher_queue_delay_s')} is a time in seconds, 0 or more.")
    for where in split_addresses(settings.teachers):
        try:
            found = parse(where)
        except ValueError as error:
            raise UsageError(f"{say('teachers')}: {where!r} {error}.") from error
        if settings.teacher_cache and isinstance(found, Served):
            raise UsageError(
                f"{say('teacher_cache')} keeps answers by the teacher's fingerprint, which {where} "
                "does not tell: leave out one of them."
            )
    least, most = settings.num_teachers, settings.max_teachers
    if most and most < least:
        raise UsageError(f"{say('max_teachers')} {most} is below {say('num_teachers')} {least}.")
    if most and not least and settings.without_teachers != "wait":
        raise UsageError(
            f"{say('num_teachers')} 0:{most}: nobody would wait for the first one with "
            f"{say('without_teachers')} {settings.without_teachers}: give 1:{most}, or leave "
            "that out."
        )
    if settings.deterministic and settings.has_teachers:
        raise UsageError(
            f"{say('deterministic')} replays what workers computed, and answers of teachers are "
            "not recorded: leave out one of them."
        )


def why_not_teachers(settings: JobSettings, number: int, most: int) -> str:
    """Return why a job that runs cannot have so many teachers; "": it can.

    `most`: above `number`: from that to this, by need.
    """
    if not settings.most_teachers:
        return "this job has no teachers of its own: start one with --num_teachers"
    if most and not number and settings.without_teachers != "wait":
        without = settings.without_teachers
        return f"0:{most} teachers: with --without_teachers {without} none would be waited for"
    return ""


def _check_deterministic(settings: JobSettings, say: Say) -> None:
    """Check that each gradient is computed on exactly one known version, by one thread."""
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
    if not is_local(settings.output):
        raise UsageError(
            f"{say('output')} is a folder, not a URL ({settings.output}): mount it, or copy from a "
            "folder afterwards."
        )
    for name in ("checkpoint_steps", "keep_checkpoint_max", "keep_best", "early_stopping"):
        if getattr(settings, name) and not settings.keeps_checkpoints:
            raise UsageError(
                f"{say(name)} needs a folder that outlives the pods: give --checkpoint_dir on a "
                "--volume or as a URL (s3://...), or a --job_volume."
            )
    for name, patience in (("keep_best", False), ("early_stopping", True)):
        if not (text := getattr(settings, name)):
            continue
        criterion(text, say(name), patience)
        if settings.command == "train" and not settings.validation_data:
            raise UsageError(
                f"{say(name)} goes by the evaluations, which need data: give --validation_data as "
                "well."
            )
    writes = settings.keep_last or settings.checkpoint_steps or settings.keep_best
    if settings.checkpoint_dir and not (writes or settings.early_stopping):
        raise UsageError(
            f"--no_keep_last: nothing would be written to {say('checkpoint_dir')}: leave out one "
            "of them, or give --checkpoint_steps or --keep_best."
        )
    if settings.evaluation_steps and settings.command == "train" and not settings.validation_data:
        raise UsageError(
            f"{say('evaluation_steps')} needs data to evaluate on: give --validation_data as well."
        )


def _check_deltas(settings: JobSettings, say: Say) -> None:
    if settings.delta_dir and settings.strategy != "ps":
        raise UsageError(
            f"{say('delta_dir')} is written by servers that hold the whole model: leave it out "
            f"with {say('strategy')} {settings.strategy}, and serve its checkpoints."
        )
    if not 0 < settings.delta_s < float("inf"):
        raise UsageError(f"{say('delta_s')} is a time in seconds above 0.")


def _check_inputs(settings: JobSettings) -> None:
    needed = [DATA[settings.command]]
    if settings.command != "train":
        needed.append("checkpoint_dir_for_init")
    for name in needed:
        if not getattr(settings, name):
            raise UsageError(f"`edl {settings.command}` needs --{name}.")
