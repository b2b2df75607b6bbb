"""The settings of a job, all in one frozen dataclass.

The command line, the YAML file, `--dry-run` and the processes all read this one table: a field's
metadata holds its help, its group and its other names. `resolve.resolve` is the only way to make
one from user input; it refuses unknown names, wrong types and contradictions with a `UsageError`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from .cluster_settings import ClusterSettings
from .data_settings import DataSettings
from .knobs import Knob, about, knob, knobs_of
from .stored import Stored
from .watching_settings import WatchingSettings

_GROUPS = (
    *("Job", "Model", "Data", "Replicas", "Teachers", "Consistency", "Speed", "Checkpoints"),
    *("Recovery", "Serving", "Cluster", "Faults", "Watching"),
)


@functools.cache
def knobs() -> tuple[Knob, ...]:
    """Return what a user may set, group by group."""
    return tuple(sorted(knobs_of(JobSettings), key=lambda knob: _GROUPS.index(knob.group)))


@functools.cache
def spellings() -> dict[str, str]:
    """Return every accepted name (with underscores) -> the setting."""
    return {spelled: knob.name for knob in knobs() for spelled in (knob.name, *knob.aliases)}


ANALYZE = "analyze"  # the command of `edl data analyze`: no model, no servers
_MINIBATCHES_PER_TASK = 8
_HOUR_S = 3600  # of silence and of grace: what takes longer is lost, or a pod that stays for ever
_MOST_REPLICAS = 10_000  # twice the nodes of the largest clusters that Kubernetes is tested with
_MOST_SERVERS = 1024  # the slots into which the parameters are cut
_MOST_RECORDS = 2**63 - 1  # and versions, bytes and seeds: what books and wire hold


@dataclass(frozen=True)
class JobSettings(DataSettings, ClusterSettings, WatchingSettings, Stored):
    """The settings of one job, resolved.

    Times are seconds, sizes are records unless the name says otherwise.
    """

    # -- Job
    command: str = knob("train", "train, evaluate, predict or analyze", "internal")
    vocabulary: int = knob(0, "Of an analysis: most frequent values to keep.", "internal")
    job_name: str = knob("", "Name of the job; made up if not given.", "Job")
    strategy: str = knob(
        "ps",
        "Where parameters live: on servers (ps), or with every worker, whose gradients are "
        "all-reduced (allreduce), or tables on servers and the rest with every worker (hybrid). "
        "But for ps, a minibatch is that of all workers together.",
        "Job",
        "distribution_strategy",
        choices=("ps", "allreduce", "hybrid"),
    )
    fully_shard: bool = knob(
        False,
        "All-reduce: no worker holds the whole model; each has a part of the parameters, gradients "
        "and optimizer state, and a mirror of its neighbour's (torch's fully_shard).",
        "Job",
        of=("train",),
    )
    output: str = knob(
        "", "Folder for the exported model, predictions and TensorBoard.", "Job", path=True
    )
    envs: dict[str, str] = field(
        default_factory=dict,
        metadata=about("Environment for workers and servers: k=v,k2=v2.", "Job"),
    )
    seed: int = knob(
        0, "Seed of the shuffling, the first parameters and the rows.", "Job", maximum=_MOST_RECORDS
    )

    # -- Model
    model_zoo: str = knob(
        "", "Folder of definitions, searched before the built-in ones.", "Model", path=True
    )
    model_def: str = knob("", "Definition: a zoo name, a file, or a dotted module.", "Model")
    model_params: dict[str, Any] = field(
        default_factory=dict, metadata=about("Arguments of model(): k=v,k2=v2.", "Model")
    )
    optimizer_params: dict[str, Any] = field(
        default_factory=dict, metadata=about("Arguments of optimizer(): k=v,k2=v2.", "Model")
    )
    device: str = knob("auto", "Device of the workers.", "Model", choices=("auto", "cpu", "cuda"))

    # -- Data
    minibatch_size: int = knob(64, "Records of a minibatch.", "Data", "batch_size", minimum=1)
    local_batch_size: int = knob(
        0,
        "All-reduce: records of one forward and backward pass; a worker whose slice of the "
        "minibatch is larger adds up several. 0: all of the slice.",
        "Data",
        of=("train",),
    )
    batch_rule: str = knob(
        "constant",
        "All-reduce: what becomes of the minibatch when the number of workers changes; linear: it "
        "and the learning rate grow and shrink with them; adaptive: they follow the goodput all "
        "the time, from --minibatch_size to --max_minibatch_size. A definition's own batch_rule "
        "goes before.",
        "Data",
        choices=("constant", "linear", "adaptive"),
        of=("train",),
    )
    max_minibatch_size: int = knob(
        0,
        "All-reduce: the most records of a minibatch, with --batch_rule adaptive.",
        "Data",
        of=("train",),
    )
    lr_warmup_steps: int = knob(
        0,
        "All-reduce: steps over which the learning rate follows the batch rule.",
        "Data",
        of=("train",),
    )
    num_minibatches_per_task: int = knob(
        0,
        "Minibatches of a task, and one task leased at a time; 0: 8, and so many tasks at once as "
        "last two seconds.",
        "Data",
    )
    num_epochs: int = knob(
        1,
        "Passes over the training data; 0: as many as --max_steps takes.",
        "Data",
        "epochs",
        of=("train",),
    )
    max_steps: int = knob(
        0,
        "Stop after so many versions; 0: no limit.",
        "Data",
        "max_step",
        of=("train",),
        maximum=_MOST_RECORDS,
    )
    shuffle: bool = knob(True, "Shuffle tasks and the records within each.", "Data", of=("train",))
    overlap_epochs: bool = knob(
        False, "Lease the next epoch's tasks in this one's tail.", "Data", of=("train",)
    )

    # -- Replicas
    num_workers: int = knob(
        2, "Workers at the start.", "Replicas", minimum=1, maximum=_MOST_REPLICAS
    )
    num_ps: int = knob(1, "Parameter servers.", "Replicas", "num_ps_pods", maximum=_MOST_SERVERS)
    relaunch_on_worker_failure: int = knob(
        3, "Relaunches of a worker or server that crashed; preemption never counts.", "Replicas"
    )
    lease_s: float = knob(10.0, "A worker silent for so long is lost.", "Replicas", maximum=_HOUR_S)
    hang_s: float = knob(
        1800.0,
        "A worker that is in one piece of your code (an import, a step, a callback) for so long "
        "hangs: its stack goes to its log, it is killed and replaced; 0: never.",
        "Replicas",
    )
    drain_grace_s: float = knob(
        20.0, "Time a draining worker has to hand back.", "Replicas", maximum=_HOUR_S
    )
    master_timeout_s: float = knob(
        120.0, "How long workers and servers wait for an absent master.", "Replicas"
    )
    worker_threads: int = knob(
        0,
        "Compute threads of a worker; 0: its share of the cores, or OMP_NUM_THREADS.",
        "Replicas",
        maximum=1024,
    )

    # -- Teachers
    num_teachers: int = knob(
        0,
        "Teachers, processes of teacher(): N, or MIN:MAX by need.",
        "Teachers",
        of=("train",),
        maximum=_MOST_REPLICAS,
    )
    max_teachers: int = knob(
        0, "The MAX of --num_teachers MIN:MAX.", "Teachers", of=("train",), maximum=_MOST_REPLICAS
    )
    teachers: str = knob(
        "", "Others' teachers: HOST:PORT,edl://HOST:PORT/NAME,...", "Teachers", of=("train",)
    )
    teacher_params: dict[str, Any] = field(
        default_factory=dict, metadata=about("Arguments of teacher(): k=v,k2=v2.", "Teachers")
    )
    without_teachers: str = knob(
        "wait",
        "Where no teacher answers: wait (--teacher_wait_s, then fail), hard_labels (train "
        "without, and count), fail (at once where none is there any more).",
        "Teachers",
        choices=("wait", "hard_labels", "fail"),
        of=("train",),
    )
    teacher_wait_s: float = knob(
        120.0, "How long a worker waits for an answer.", "Teachers", of=("train",)
    )
    teacher_timeout_s: float = knob(
        30.0,
        "How long one teacher has; then another is asked.",
        "Teachers",
        of=("train",),
        maximum=_HOUR_S,
    )
    teacher_batch_size: int = knob(
        0, "Records of a teacher's batch; 0: the fastest, searched.", "Teachers", of=("train",)
    )
    teacher_queue_delay_s: float = knob(
        0.0,
        "How long a batch that is not full waits for more.",
        "Teachers",
        of=("train",),
        maximum=_HOUR_S,
    )
    teacher_replies: str = knob(
        "float32",
        "How answers travel; float16 is half of the bytes.",
        "Teachers",
        choices=("float32", "float16"),
        of=("train",),
    )
    teacher_cache: str = knob(
        "", "Folder that keeps what teachers answer.", "Teachers", path=True, of=("train",)
    )
    teacher_views: int = knob(
        1, "Views of a record, by epoch (view_seeds).", "Teachers", minimum=1, of=("train",)
    )

    # -- Consistency
    use_async: bool = knob(False, "Apply each push on arrival.", "Consistency", of=("train",))
    grads_to_wait: int = knob(
        1,
        "Sync: pushes of one version.",
        "Consistency",
        minimum=1,
        of=("train",),
        maximum=_MOST_REPLICAS,
    )
    staleness: int | None = knob(
        None,
        "Refuse (and recompute) gradients older than so many versions; default 0 in sync mode, "
        "no bound in async mode. Hybrid: steps whose rows a pull may lack; default 1.",
        "Consistency",
        "sync_version_tolerance",
        of=("train",),
    )
    lr_staleness_modulation: bool = knob(
        False,
        "Async: divide the learning rate by the staleness of the push.",
        "Consistency",
        of=("train",),
    )
    get_model_steps: int = knob(
        1,
        "Async: pull dense parameters every so many minibatches.",
        "Consistency",
        minimum=1,
        of=("train",),
    )
    pull_ahead: int = knob(
        0,
        "Async: minibatches pulled while one computes, 0 or 1: hides the pull, but gradients are "
        "one step staler, which a high learning rate with momentum may not bear.",
        "Consistency",
        of=("train",),
    )
    deterministic: bool = knob(
        False,
        "Record the order of everything, so that `edl replay` repeats the run bit for bit in one "
        "process: slower, for debugging and tests.",
        "Consistency",
        of=("train",),
    )
    ps_embedding_threshold: int = knob(
        2 << 20,
        "An nn.Embedding or EmbeddingBag of more bytes than this moves to the servers; 0: none.",
        "Consistency",
        maximum=_MOST_RECORDS,
    )

    # -- Speed
    transport: str = knob(
        "auto",
        "How workers reach the servers; auto: shared memory on the same host, else tcp.",
        "Speed",
        choices=("auto", "shm", "unix", "tcp", "grpc"),
    )
    gradient_wire: str = knob(
        "float32",
        "Numbers of gradients on the wire: fewer bytes for some exactness.",
        "Speed",
        choices=("float32", "float16", "int8"),
        of=("train",),
    )
    push_window: int = knob(
        1,
        "Pushes under way while the worker computes on.",
        "Speed",
        minimum=1,
        of=("train",),
        maximum=1024,
    )
    precision: str = knob(
        "float32",
        "Numbers of the forward and backward pass (autocast); parameters stay float32.",
        "Speed",
        choices=("float32", "bf16", "fp16"),
    )
    compile: bool = knob(
        False, "Compile the dense part of the model (torch.compile).", "Speed", of=("train",)
    )

    # -- Checkpoints and evaluation
    checkpoint_steps: int = knob(
        0, "Checkpoint every so many versions; 0: at the end.", "Checkpoints", of=("train",)
    )
    checkpoint_dir: str = knob(
        "",
        "Folder or URL (s3://...) of the checkpoints; default: `checkpoints` in the job's folder.",
        "Checkpoints",
        path=True,
        of=("train",),
    )
    keep_checkpoint_max: int = knob(0, "Checkpoints kept; 0: all.", "Checkpoints", of=("train",))
    keep_last: bool = knob(
        True, "Write a checkpoint when training has ended.", "Checkpoints", of=("train",)
    )
    keep_best: str = knob(
        "",
        "Keep the best checkpoint by a metric of the evaluations, in `best` beside the others: "
        "METRIC, or METRIC:min or METRIC:max where the metric does not know which is best.",
        "Checkpoints",
        of=("train",),
    )
    early_stopping: str = knob(
        "",
        "End training when a metric was no better in so many evaluations in a row, and keep the "
        "best checkpoint: METRIC[:min|max][:PATIENCE], of 3 unless said.",
        "Checkpoints",
        of=("train",),
    )
    checkpoint_dir_for_init: str = knob(
        "",
        "Start from this checkpoint's parameters: a checkpoint, a --checkpoint_dir, a job's name "
        "or folder.",
        "Checkpoints",
        path=True,
    )
    resume: str = knob(
        "",
        "Go on at the exact record where a checkpoint was taken, with the settings of the run that "
        "wrote it, unless said otherwise: a checkpoint, a --checkpoint_dir, a job's name or "
        "folder. The folder of a job that failed or was cut off: that job goes on, if nothing else "
        "is given.",
        "Checkpoints",
        path=True,
        of=("train",),
    )
    allow_changed_data: bool = knob(
        False,
        "With --resume: go on though the data does not hold what it held when the checkpoint was "
        "written. Its positions are taken for those of the records that lie there now.",
        "Checkpoints",
        of=("train",),
    )
    evaluation_steps: int = knob(
        0,
        "Evaluate every so many versions; 0: at the end of each epoch.",
        "Checkpoints",
        of=("train",),
    )
    log_loss_steps: int = knob(
        100, "Log the loss every so many minibatches.", "Checkpoints", of=("train",)
    )

    # -- Recovery
    snapshot_s: float = knob(
        10.0,
        "Each server writes what changed every so many seconds, so that no more than this is "
        "computed again when one is lost; 0: never, all is computed again.",
        "Recovery",
    )
    snapshot_dir: str = knob(
        "",
        "Folder or URL (s3://...) of those snapshots; default: the job's folder.",
        "Recovery",
        path=True,
    )
    server_timeout_s: float = knob(
        30.0, "A server so long silent is replaced.", "Recovery", maximum=_HOUR_S
    )
    preemption_notice: str = knob(
        "",
        "Command that ends with 0 when the provider says that this machine will be taken: its "
        "worker then hands back, its server leaves a last snapshot.",
        "Recovery",
    )
    server_wait_s: float = knob(
        600.0, "How long a worker waits for a lost server to be replaced.", "Recovery"
    )

    # -- Serving
    delta_dir: str = knob(
        "", "Folder or URL to leave deltas in, for serving.", "Serving", path=True, of=("train",)
    )
    delta_s: float = knob(10.0, "Seconds between two of them.", "Serving", of=("train",))

    # -- Faults in the data
    task_fault_tolerance: int = knob(
        3, "Tries of a span whose content fails before it is quarantined.", "Faults", minimum=1
    )
    skip_records: int = knob(
        0,
        "Budget: up to so many quarantined records still count as success.",
        "Faults",
        maximum=_MOST_RECORDS,
    )

    @property
    def data(self) -> dict[str, str]:
        """The paths that the command reads, by what they are of: training, where it trains, first.

        Of an analysis it is the training's.
        """
        found = {
            "training": self.training_data if self.command in ("train", ANALYZE) else "",
            "validation": self.validation_data if self.command in ("train", "evaluate") else "",
            "prediction": self.prediction_data if self.command == "predict" else "",
        }
        return {name: path for name, path in found.items() if path}

    @property
    def keeps_checkpoints(self) -> bool:
        """Tell whether a folder for checkpoints outlives the job: a pod's disk does not."""
        return bool(self.checkpoint_dir or self.job_volume) or self.runtime != "kubernetes"

    @property
    def has_teachers(self) -> bool:
        """Tell whether records are taught: by the job's own teachers, others', or a cache."""
        return bool(self.most_teachers or self.teachers or self.teacher_cache)

    @property
    def most_teachers(self) -> int:
        """The most teachers that the job starts by itself."""
        return max(self.num_teachers, self.max_teachers)

    @property
    def table_threshold(self) -> int:
        """The bytes above which an nn.Embedding becomes a table; 0: none does."""
        return 0 if self.strategy == "allreduce" else self.ps_embedding_threshold

    @property
    def minibatches_per_task(self) -> int:
        """Return what was asked for, or what is a sound unit of what a lost worker leaves."""
        return self.num_minibatches_per_task or _MINIBATCHES_PER_TASK

    @property
    def resolved_staleness(self) -> int | None:
        """The versions by which a push may lag; None: no bound."""
        if self.staleness is not None:
            return self.staleness
        if self.strategy == "hybrid":
            return 1
        return None if self.use_async else 0

    @property
    def push_brings_dense(self) -> bool:
        """Tell whether a push brings back the dense values of its version.

        That is its own, and nobody's pull is ahead.
        """
        own_version = self.use_async or self.grads_to_wait == 1
        follows = self.get_model_steps == 1 and not self.deterministic
        return own_version and not self.pull_ahead and follows
