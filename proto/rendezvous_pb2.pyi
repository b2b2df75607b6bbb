from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeReport(_message.Message):
    __slots__ = ("throughput", "remaining_s")
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    throughput: float
    remaining_s: float
    def __init__(self, throughput: _Optional[float] = ..., remaining_s: _Optional[float] = ...) -> None: ...

class BeatRequest(_message.Message):
    __slots__ = ("node", "host", "pid", "round", "report", "wait_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    pid: int
    round: int
    report: NodeReport
    wait_s: float
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., round: _Optional[int] = ..., report: _Optional[_Union[NodeReport, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class BeatReply(_message.Message):
    __slots__ = ("restart", "closed", "settings_json")
    RESTART_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    restart: bool
    closed: str
    settings_json: str
    def __init__(self, restart: bool = ..., closed: _Optional[str] = ..., settings_json: _Optional[str] = ...) -> None: ...

class WorkerFailure(_message.Message):
    __slots__ = ("rank", "exit_code", "words")
    RANK_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    exit_code: int
    words: str
    def __init__(self, rank: _Optional[int] = ..., exit_code: _Optional[int] = ..., words: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("node", "request_id", "nproc", "store", "newest", "failure", "wait_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NPROC_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    request_id: str
    nproc: int
    store: str
    newest: int
    failure: WorkerFailure
    wait_s: float
    def __init__(self, node: _Optional[str] = ..., request_id: _Optional[str] = ..., nproc: _Optional[int] = ..., store: _Optional[str] = ..., newest: _Optional[int] = ..., failure: _Optional[_Union[WorkerFailure, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("closed", "round", "rank", "num_nodes", "store", "restarts", "identical")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    IDENTICAL_FIELD_NUMBER: _ClassVar[int]
    closed: str
    round: int
    rank: int
    num_nodes: int
    store: str
    restarts: int
    identical: bool
    def __init__(self, closed: _Optional[str] = ..., round: _Optional[int] = ..., rank: _Optional[int] = ..., num_nodes: _Optional[int] = ..., store: _Optional[str] = ..., restarts: _Optional[int] = ..., identical: bool = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("node", "round", "wait_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    round: int
    wait_s: float
    def __init__(self, node: _Optional[str] = ..., round: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class FinishReply(_message.Message):
    __slots__ = ("closed", "restart")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    closed: str
    restart: bool
    def __init__(self, closed: _Optional[str] = ..., restart: bool = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
