from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Span(_message.Message):
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

class DenseChunk(_message.Message):
    __slots__ = ("tensor", "chunk", "data")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    chunk: int
    data: bytes
    def __init__(self, tensor: _Optional[str] = ..., chunk: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("table", "ids", "values")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    table: str
    ids: bytes
    values: bytes
    def __init__(self, table: _Optional[str] = ..., ids: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class InitRequest(_message.Message):
    __slots__ = ("model_json", "chunks", "complete", "rows_given", "tables")
    class RowsGivenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ROWS_GIVEN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    model_json: str
    chunks: _containers.RepeatedCompositeFieldContainer[DenseChunk]
    complete: bool
    rows_given: _containers.ScalarMap[str, int]
    tables: _containers.RepeatedCompositeFieldContainer[Rows]
    def __init__(self, model_json: _Optional[str] = ..., chunks: _Optional[_Iterable[_Union[DenseChunk, _Mapping]]] = ..., complete: bool = ..., rows_given: _Optional[_Mapping[str, int]] = ..., tables: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ...) -> None: ...

class InitReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("dense", "known_version", "tables", "cut", "slot_map_version")
    DENSE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    dense: bool
    known_version: int
    tables: _containers.RepeatedCompositeFieldContainer[Rows]
    cut: str
    slot_map_version: int
    def __init__(self, dense: bool = ..., known_version: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., cut: _Optional[str] = ..., slot_map_version: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("outcome", "version", "dense", "tables")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[PullReply.Outcome]
        UNINITIALIZED: _ClassVar[PullReply.Outcome]
        MOVED: _ClassVar[PullReply.Outcome]
    OK: PullReply.Outcome
    UNINITIALIZED: PullReply.Outcome
    MOVED: PullReply.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    outcome: PullReply.Outcome
    version: int
    dense: _containers.RepeatedCompositeFieldContainer[DenseChunk]
    tables: _containers.RepeatedCompositeFieldContainer[Rows]
    def __init__(self, outcome: _Optional[_Union[PullReply.Outcome, str]] = ..., version: _Optional[int] = ..., dense: _Optional[_Iterable[_Union[DenseChunk, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("span", "version", "dense", "tables", "slot_map_version")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    span: Span
    version: int
    dense: _containers.RepeatedCompositeFieldContainer[DenseChunk]
    tables: _containers.RepeatedCompositeFieldContainer[Rows]
    slot_map_version: int
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., version: _Optional[int] = ..., dense: _Optional[_Iterable[_Union[DenseChunk, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., slot_map_version: _Optional[int] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("outcome", "version", "applied")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        APPLIED: _ClassVar[PushReply.Outcome]
        DUPLICATE: _ClassVar[PushReply.Outcome]
        FENCED: _ClassVar[PushReply.Outcome]
        GAP: _ClassVar[PushReply.Outcome]
        STALE: _ClassVar[PushReply.Outcome]
        UNINITIALIZED: _ClassVar[PushReply.Outcome]
        MOVED: _ClassVar[PushReply.Outcome]
    APPLIED: PushReply.Outcome
    DUPLICATE: PushReply.Outcome
    FENCED: PushReply.Outcome
    GAP: PushReply.Outcome
    STALE: PushReply.Outcome
    UNINITIALIZED: PushReply.Outcome
    MOVED: PushReply.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    outcome: PushReply.Outcome
    version: int
    applied: int
    def __init__(self, outcome: _Optional[_Union[PushReply.Outcome, str]] = ..., version: _Optional[int] = ..., applied: _Optional[int] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("entries", "master_epoch")
    class Entry(_message.Message):
        __slots__ = ("task", "attempt")
        TASK_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        task: int
        attempt: int
        def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MASTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FenceRequest.Entry]
    master_epoch: int
    def __init__(self, entries: _Optional[_Iterable[_Union[FenceRequest.Entry, _Mapping]]] = ..., master_epoch: _Optional[int] = ...) -> None: ...

class FenceReply(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("task", "applied")
        TASK_FIELD_NUMBER: _ClassVar[int]
        APPLIED_FIELD_NUMBER: _ClassVar[int]
        task: int
        applied: int
        def __init__(self, task: _Optional[int] = ..., applied: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FenceReply.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[FenceReply.Entry, _Mapping]]] = ...) -> None: ...

class LedgerEntry(_message.Message):
    __slots__ = ("task", "attempt", "applied")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    applied: int
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., applied: _Optional[int] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("cut", "timeout_s")
    CUT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    cut: str
    timeout_s: float
    def __init__(self, cut: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("ledger", "version")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    version: int
    def __init__(self, ledger: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("cut", "targets", "timeout_s")
    CUT_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    cut: str
    targets: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    timeout_s: float
    def __init__(self, cut: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ("reached", "version")
    REACHED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    reached: bool
    version: int
    def __init__(self, reached: bool = ..., version: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: str
    def __init__(self, cut: _Optional[str] = ...) -> None: ...

class UnpinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("cut", "directory", "values_only", "since", "let_go")
    CUT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    VALUES_ONLY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    cut: str
    directory: str
    values_only: bool
    since: str
    let_go: bool
    def __init__(self, cut: _Optional[str] = ..., directory: _Optional[str] = ..., values_only: bool = ..., since: _Optional[str] = ..., let_go: bool = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("files", "version", "unknown", "rows")
    class File(_message.Message):
        __slots__ = ("name", "nbytes", "sha256")
        NAME_FIELD_NUMBER: _ClassVar[int]
        NBYTES_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        name: str
        nbytes: int
        sha256: str
        def __init__(self, name: _Optional[str] = ..., nbytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[SnapshotReply.File]
    version: int
    unknown: bool
    rows: _containers.ScalarMap[str, int]
    def __init__(self, files: _Optional[_Iterable[_Union[SnapshotReply.File, _Mapping]]] = ..., version: _Optional[int] = ..., unknown: bool = ..., rows: _Optional[_Mapping[str, int]] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushReply(_message.Message):
    __slots__ = ("version", "pushes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    version: int
    pushes: int
    def __init__(self, version: _Optional[int] = ..., pushes: _Optional[int] = ...) -> None: ...

class RetireRequest(_message.Message):
    __slots__ = ("low_water",)
    LOW_WATER_FIELD_NUMBER: _ClassVar[int]
    low_water: int
    def __init__(self, low_water: _Optional[int] = ...) -> None: ...

class RetireReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlaneRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlaneReply(_message.Message):
    __slots__ = ("tcp_port", "unix_name", "host_id")
    TCP_PORT_FIELD_NUMBER: _ClassVar[int]
    UNIX_NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    tcp_port: int
    unix_name: str
    host_id: str
    def __init__(self, tcp_port: _Optional[int] = ..., unix_name: _Optional[str] = ..., host_id: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("shard", "version", "initialized", "dense_bytes", "table_rows", "ledger_tasks", "pushes_applied", "pushes_duplicate", "pushes_fenced", "pushes_stale", "pushes_gap")
    class TableRowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    DENSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_TASKS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_APPLIED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FENCED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_STALE_FIELD_NUMBER: _ClassVar[int]
    PUSHES_GAP_FIELD_NUMBER: _ClassVar[int]
    shard: int
    version: int
    initialized: bool
    dense_bytes: int
    table_rows: _containers.ScalarMap[str, int]
    ledger_tasks: int
    pushes_applied: int
    pushes_duplicate: int
    pushes_fenced: int
    pushes_stale: int
    pushes_gap: int
    def __init__(self, shard: _Optional[int] = ..., version: _Optional[int] = ..., initialized: bool = ..., dense_bytes: _Optional[int] = ..., table_rows: _Optional[_Mapping[str, int]] = ..., ledger_tasks: _Optional[int] = ..., pushes_applied: _Optional[int] = ..., pushes_duplicate: _Optional[int] = ..., pushes_fenced: _Optional[int] = ..., pushes_stale: _Optional[int] = ..., pushes_gap: _Optional[int] = ...) -> None: ...
