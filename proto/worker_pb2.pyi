from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
