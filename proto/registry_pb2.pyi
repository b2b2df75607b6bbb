from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Teacher(_message.Message):
    __slots__ = ("address", "fingerprint", "incarnation", "ttl_s")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    address: str
    fingerprint: str
    incarnation: str
    ttl_s: float
    def __init__(self, address: _Optional[str] = ..., fingerprint: _Optional[str] = ..., incarnation: _Optional[str] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("name", "teacher")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEACHER_FIELD_NUMBER: _ClassVar[int]
    name: str
    teacher: Teacher
    def __init__(self, name: _Optional[str] = ..., teacher: _Optional[_Union[Teacher, _Mapping]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("name", "address", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    incarnation: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("name", "known_version", "wait_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    known_version: int
    wait_s: float
    def __init__(self, name: _Optional[str] = ..., known_version: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("version", "teachers", "names")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    version: int
    teachers: _containers.RepeatedCompositeFieldContainer[Teacher]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., teachers: _Optional[_Iterable[_Union[Teacher, _Mapping]]] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...
