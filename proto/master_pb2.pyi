from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNKNOWN: _ClassVar[Role]
    WORKER: _ClassVar[Role]
    SERVER: _ClassVar[Role]
    TEACHER: _ClassVar[Role]

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNKNOWN: _ClassVar[TaskKind]
    TRAIN: _ClassVar[TaskKind]
    EVALUATE: _ClassVar[TaskKind]
    PREDICT: _ClassVar[TaskKind]
    EVALUATE_END: _ClassVar[TaskKind]
    TRAIN_END: _ClassVar[TaskKind]
    ANALYZE: _ClassVar[TaskKind]
    ANALYZE_END: _ClassVar[TaskKind]
ROLE_UNKNOWN: Role
WORKER: Role
SERVER: Role
TEACHER: Role
KIND_UNKNOWN: TaskKind
TRAIN: TaskKind
EVALUATE: TaskKind
PREDICT: TaskKind
EVALUATE_END: TaskKind
TRAIN_END: TaskKind
ANALYZE: TaskKind
ANALYZE_END: TaskKind

class Replica(_message.Message):
    __slots__ = ("role", "index", "incarnation")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    incarnation: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("replica", "address", "metrics_address", "pid", "host", "note")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    address: str
    metrics_address: str
    pid: int
    host: str
    note: str
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., address: _Optional[str] = ..., metrics_address: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("fenced", "settings_json", "job_dir")
    FENCED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_DIR_FIELD_NUMBER: _ClassVar[int]
    fenced: bool
    settings_json: str
    job_dir: str
    def __init__(self, fenced: bool = ..., settings_json: _Optional[str] = ..., job_dir: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "attempt", "kind", "source", "start", "end", "epoch", "position", "boundaries", "skips", "cut", "payload", "lease_s", "careful")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    CAREFUL_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    kind: TaskKind
    source: str
    start: int
    end: int
    epoch: int
    position: int
    boundaries: _containers.RepeatedScalarFieldContainer[int]
    skips: _containers.RepeatedScalarFieldContainer[int]
    cut: str
    payload: bytes
    lease_s: float
    careful: bool
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., source: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., boundaries: _Optional[_Iterable[int]] = ..., skips: _Optional[_Iterable[int]] = ..., cut: _Optional[str] = ..., payload: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., careful: bool = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("replica", "request_id", "wait_s", "round", "number", "most", "reports")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    request_id: str
    wait_s: float
    round: int
    number: int
    most: int
    reports: _containers.RepeatedCompositeFieldContainer[ReportTaskRequest]
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., request_id: _Optional[str] = ..., wait_s: _Optional[float] = ..., round: _Optional[int] = ..., number: _Optional[int] = ..., most: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[ReportTaskRequest, _Mapping]]] = ...) -> None: ...

class GetTaskReply(_message.Message):
    __slots__ = ("outcome", "task", "more", "accepted")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TASK: _ClassVar[GetTaskReply.Outcome]
        WAIT: _ClassVar[GetTaskReply.Outcome]
        FINISHED: _ClassVar[GetTaskReply.Outcome]
        FENCED: _ClassVar[GetTaskReply.Outcome]
        DRAIN: _ClassVar[GetTaskReply.Outcome]
        ROUND_OVER: _ClassVar[GetTaskReply.Outcome]
    TASK: GetTaskReply.Outcome
    WAIT: GetTaskReply.Outcome
    FINISHED: GetTaskReply.Outcome
    FENCED: GetTaskReply.Outcome
    DRAIN: GetTaskReply.Outcome
    ROUND_OVER: GetTaskReply.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    outcome: GetTaskReply.Outcome
    task: Task
    more: _containers.RepeatedCompositeFieldContainer[Task]
    accepted: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, outcome: _Optional[_Union[GetTaskReply.Outcome, str]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., more: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., accepted: _Optional[_Iterable[bool]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("start", "end", "source", "record", "error", "traceback")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    source: str
    record: int
    error: str
    traceback: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., source: _Optional[str] = ..., record: _Optional[int] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class ReportTaskRequest(_message.Message):
    __slots__ = ("replica", "task", "attempt", "done", "failed", "handed_back", "result", "records", "round", "version", "slot_map_version")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HANDED_BACK_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    task: int
    attempt: int
    done: bool
    failed: Failure
    handed_back: int
    result: bytes
    records: int
    round: int
    version: int
    slot_map_version: int
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., done: bool = ..., failed: _Optional[_Union[Failure, _Mapping]] = ..., handed_back: _Optional[int] = ..., result: _Optional[bytes] = ..., records: _Optional[int] = ..., round: _Optional[int] = ..., version: _Optional[int] = ..., slot_map_version: _Optional[int] = ...) -> None: ...

class ReportTaskReply(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("task", "attempt", "position")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    position: int
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("snapshot", "low_water", "tasks")
    class Task(_message.Message):
        __slots__ = ("task", "position")
        TASK_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        task: int
        position: int
        def __init__(self, task: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LOW_WATER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    snapshot: int
    low_water: int
    tasks: _containers.RepeatedCompositeFieldContainer[Coverage.Task]
    def __init__(self, snapshot: _Optional[int] = ..., low_water: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[Coverage.Task, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("replica", "progress", "version", "scalars", "state", "coverage", "notes", "round", "trying", "stuck", "reports", "fails")
    class ScalarsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TRYING_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    FAILS_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    version: int
    scalars: _containers.ScalarMap[str, float]
    state: str
    coverage: Coverage
    notes: _containers.RepeatedScalarFieldContainer[str]
    round: int
    trying: Trying
    stuck: Stuck
    reports: _containers.RepeatedCompositeFieldContainer[ReportTaskRequest]
    fails: str
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., version: _Optional[int] = ..., scalars: _Optional[_Mapping[str, float]] = ..., state: _Optional[str] = ..., coverage: _Optional[_Union[Coverage, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., round: _Optional[int] = ..., trying: _Optional[_Union[Trying, _Mapping]] = ..., stuck: _Optional[_Union[Stuck, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[ReportTaskRequest, _Mapping]]] = ..., fails: _Optional[str] = ...) -> None: ...

class Trying(_message.Message):
    __slots__ = ("task", "attempt", "start", "end")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    start: int
    end: int
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Stuck(_message.Message):
    __slots__ = ("what", "seconds", "over")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    what: str
    seconds: float
    over: bool
    def __init__(self, what: _Optional[str] = ..., seconds: _Optional[float] = ..., over: bool = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("fenced", "drain", "low_water", "slot_map_version", "tasks_below", "accepted", "interval_s")
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LOW_WATER_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKS_BELOW_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    fenced: bool
    drain: bool
    low_water: int
    slot_map_version: int
    tasks_below: int
    accepted: _containers.RepeatedScalarFieldContainer[bool]
    interval_s: float
    def __init__(self, fenced: bool = ..., drain: bool = ..., low_water: _Optional[int] = ..., slot_map_version: _Optional[int] = ..., tasks_below: _Optional[int] = ..., accepted: _Optional[_Iterable[bool]] = ..., interval_s: _Optional[float] = ...) -> None: ...

class GetServersRequest(_message.Message):
    __slots__ = ("known_slot_map_version", "wait_s")
    KNOWN_SLOT_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    known_slot_map_version: int
    wait_s: float
    def __init__(self, known_slot_map_version: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class GetServersReply(_message.Message):
    __slots__ = ("slot_map_version", "addresses", "num_slots")
    SLOT_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    slot_map_version: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    num_slots: int
    def __init__(self, slot_map_version: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., num_slots: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("replica", "wait_s", "address", "version", "applied", "round", "broken", "leaves", "parts", "pending")
    class AppliedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    wait_s: float
    address: str
    version: int
    applied: _containers.ScalarMap[int, int]
    round: int
    broken: bool
    leaves: bool
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    pending: bool
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., wait_s: _Optional[float] = ..., address: _Optional[str] = ..., version: _Optional[int] = ..., applied: _Optional[_Mapping[int, int]] = ..., round: _Optional[int] = ..., broken: bool = ..., leaves: bool = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., pending: bool = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("world", "rank")
    WORLD_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    world: int
    rank: int
    def __init__(self, world: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("index", "address", "version", "parts")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    address: str
    version: int
    parts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., address: _Optional[str] = ..., version: _Optional[int] = ..., parts: _Optional[_Iterable[int]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("outcome", "round", "rank", "peers", "low_water", "afresh", "restore", "save", "version", "parts", "givers")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ROUND: _ClassVar[JoinReply.Outcome]
        WAIT: _ClassVar[JoinReply.Outcome]
        FENCED: _ClassVar[JoinReply.Outcome]
        LEAVE: _ClassVar[JoinReply.Outcome]
    ROUND: JoinReply.Outcome
    WAIT: JoinReply.Outcome
    FENCED: JoinReply.Outcome
    LEAVE: JoinReply.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LOW_WATER_FIELD_NUMBER: _ClassVar[int]
    AFRESH_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    GIVERS_FIELD_NUMBER: _ClassVar[int]
    outcome: JoinReply.Outcome
    round: int
    rank: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    low_water: int
    afresh: bool
    restore: str
    save: str
    version: int
    parts: int
    givers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, outcome: _Optional[_Union[JoinReply.Outcome, str]] = ..., round: _Optional[int] = ..., rank: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., low_water: _Optional[int] = ..., afresh: bool = ..., restore: _Optional[str] = ..., save: _Optional[str] = ..., version: _Optional[int] = ..., parts: _Optional[int] = ..., givers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class WatchRoundRequest(_message.Message):
    __slots__ = ("replica", "round", "told_to_change", "orders", "wait_s")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOLD_TO_CHANGE_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    round: int
    told_to_change: bool
    orders: int
    wait_s: float
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., round: _Optional[int] = ..., told_to_change: bool = ..., orders: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class WatchRoundReply(_message.Message):
    __slots__ = ("signal", "orders")
    class Signal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOTHING: _ClassVar[WatchRoundReply.Signal]
        CHANGE: _ClassVar[WatchRoundReply.Signal]
        BROKEN: _ClassVar[WatchRoundReply.Signal]
    NOTHING: WatchRoundReply.Signal
    CHANGE: WatchRoundReply.Signal
    BROKEN: WatchRoundReply.Signal
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    signal: WatchRoundReply.Signal
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, signal: _Optional[_Union[WatchRoundReply.Signal, str]] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("id", "kind", "cut", "directory", "round", "rank", "addresses")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TAKE: _ClassVar[Order.Kind]
        WRITE: _ClassVar[Order.Kind]
        DROP: _ClassVar[Order.Kind]
        TAKE_ALL: _ClassVar[Order.Kind]
    TAKE: Order.Kind
    WRITE: Order.Kind
    DROP: Order.Kind
    TAKE_ALL: Order.Kind
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: Order.Kind
    cut: str
    directory: str
    round: int
    rank: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[_Union[Order.Kind, str]] = ..., cut: _Optional[str] = ..., directory: _Optional[str] = ..., round: _Optional[int] = ..., rank: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportOrderRequest(_message.Message):
    __slots__ = ("replica", "id", "error", "version", "applied", "files", "model_json", "directory")
    class File(_message.Message):
        __slots__ = ("name", "nbytes", "sha256")
        NAME_FIELD_NUMBER: _ClassVar[int]
        NBYTES_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        name: str
        nbytes: int
        sha256: str
        def __init__(self, name: _Optional[str] = ..., nbytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...
    class AppliedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    id: int
    error: str
    version: int
    applied: _containers.ScalarMap[int, int]
    files: _containers.RepeatedCompositeFieldContainer[ReportOrderRequest.File]
    model_json: str
    directory: str
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., id: _Optional[int] = ..., error: _Optional[str] = ..., version: _Optional[int] = ..., applied: _Optional[_Mapping[int, int]] = ..., files: _Optional[_Iterable[_Union[ReportOrderRequest.File, _Mapping]]] = ..., model_json: _Optional[str] = ..., directory: _Optional[str] = ...) -> None: ...

class ReportOrderReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutKeyRequest(_message.Message):
    __slots__ = ("round", "key", "value")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    round: int
    key: str
    value: bytes
    def __init__(self, round: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class PutKeyReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetKeyRequest(_message.Message):
    __slots__ = ("round", "key", "wait_s")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    round: int
    key: str
    wait_s: float
    def __init__(self, round: _Optional[int] = ..., key: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class GetKeyReply(_message.Message):
    __slots__ = ("found", "value", "round_over")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ROUND_OVER_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: bytes
    round_over: bool
    def __init__(self, found: bool = ..., value: _Optional[bytes] = ..., round_over: bool = ...) -> None: ...

class GetTeachersRequest(_message.Message):
    __slots__ = ("known_version", "wait_s", "met", "fingerprint")
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    known_version: int
    wait_s: float
    met: str
    fingerprint: str
    def __init__(self, known_version: _Optional[int] = ..., wait_s: _Optional[float] = ..., met: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class GetTeachersReply(_message.Message):
    __slots__ = ("version", "addresses", "fingerprint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    version: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    fingerprint: str
    def __init__(self, version: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("known_revision", "wait_s")
    KNOWN_REVISION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    known_revision: int
    wait_s: float
    def __init__(self, known_revision: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("revision", "status_json")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    revision: int
    status_json: str
    def __init__(self, revision: _Optional[int] = ..., status_json: _Optional[str] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("num_workers", "num_servers", "num_teachers", "max_teachers")
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SERVERS_FIELD_NUMBER: _ClassVar[int]
    NUM_TEACHERS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEACHERS_FIELD_NUMBER: _ClassVar[int]
    num_workers: int
    num_servers: int
    num_teachers: int
    max_teachers: int
    def __init__(self, num_workers: _Optional[int] = ..., num_servers: _Optional[int] = ..., num_teachers: _Optional[int] = ..., max_teachers: _Optional[int] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ("previous", "refused")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    previous: int
    refused: str
    def __init__(self, previous: _Optional[int] = ..., refused: _Optional[str] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("request_id", "wait_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    wait_s: float
    def __init__(self, request_id: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("pending", "checkpoint", "refused")
    PENDING_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    pending: bool
    checkpoint: str
    refused: str
    def __init__(self, pending: bool = ..., checkpoint: _Optional[str] = ..., refused: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
