from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchStateRequest(_message.Message):
    __slots__ = ("round", "offset")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    round: int
    offset: int
    def __init__(self, round: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchStateReply(_message.Message):
    __slots__ = ("gone", "nbytes", "part")
    GONE_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    gone: bool
    nbytes: int
    part: bytes
    def __init__(self, gone: bool = ..., nbytes: _Optional[int] = ..., part: _Optional[bytes] = ...) -> None: ...

class Stretch(_message.Message):
    __slots__ = ("number", "start", "stop")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    number: int
    start: int
    stop: int
    def __init__(self, number: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class FetchPartRequest(_message.Message):
    __slots__ = ("version", "cut", "world", "rank", "stretches")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STRETCHES_FIELD_NUMBER: _ClassVar[int]
    version: int
    cut: str
    world: int
    rank: int
    stretches: _containers.RepeatedCompositeFieldContainer[Stretch]
    def __init__(self, version: _Optional[int] = ..., cut: _Optional[str] = ..., world: _Optional[int] = ..., rank: _Optional[int] = ..., stretches: _Optional[_Iterable[_Union[Stretch, _Mapping]]] = ...) -> None: ...

class FetchPartReply(_message.Message):
    __slots__ = ("found", "gone", "data")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    found: bool
    gone: bool
    data: bytes
    def __init__(self, found: bool = ..., gone: bool = ..., data: _Optional[bytes] = ...) -> None: ...
