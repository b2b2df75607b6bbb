"""KServe's v2 protocol over gRPC: tensors are bytes in messages, on one channel that stays open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ...common.errors import EdlError, Unreachable
from ...common.listen import joined
from ...common.teacher_address import Served
from ...proto import kserve_pb2 as pb
from ..frames import Part
from ..link import Busy
from .carrier import CONFIG_EXTENSION, MAY_NOT, Said, left_until, short
from .tensors import Input, Model, Tensor, listed_part, raw_part

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # two minutes otherwise
    ("grpc.use_local_subchannel_pool", 1),
]
_PASSES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
}
_MAY_NOT = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
# The two that a status has no code of its own for: by words of gRPC and of Triton.
_TOO_LARGE = "larger than max"
_FULL = "exceeds maximum queue size"
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}

Reply = TypeVar("Reply", bound=Message)


class GrpcCarrier:
    """A model behind gRPC. Any thread may call."""

    def __init__(self, served: Served, headers: Mapping[str, str]) -> None:
        self._served = served
        self._metadata = tuple(headers.items())
        self._asked = pb.ModelRequest(name=served.model, version=served.version)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._answers = 0  # ever
        self._closed = False

    def model(self, deadline: float) -> Model:
        """Return what the server tells of the model. Raises Said, Busy, Unreachable."""
        try:
            server = self._call(
                "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataReply, deadline
            )
            extensions = list(server.extensions)
        except Said:
            extensions = []  # a server that tells nothing of itself has none
        told = self._call("ModelMetadata", self._asked, pb.ModelMetadataReply, deadline)
        most = 0
        if CONFIG_EXTENSION in extensions:
            reply = self._call("ModelConfig", self._asked, pb.ModelConfigReply, deadline)
            most = max(0, reply.config.max_batch_size)
        return Model(_tensors(told.inputs), _tensors(told.outputs), most)

    def infer(self, inputs: Sequence[Input], _model: Model, deadline: float) -> list[Part]:
        """Return the model's outputs.

        Raises ValueError for what are none, Said, Busy, Unreachable.
        """
        request = pb.InferRequest(
            model_name=self._served.model,
            model_version=self._served.version,
            inputs=[
                pb.InferTensor(name=each.name, datatype=each.datatype, shape=each.values.shape)
                for each in inputs
            ],
            raw_input_contents=[each.raw().tobytes() for each in inputs],
        )
        return _outputs(self._call("ModelInfer", request, pb.InferReply, deadline))

    def is_ready(self, deadline: float) -> bool:
        try:
            reply = self._call("ServerReady", pb.HealthRequest(), pb.HealthReply, deadline)
        except Said:
            return False
        return bool(reply.is_so)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _call(self, name: str, request: Message, kind: type[Reply], deadline: float) -> Reply:
        left_s = left_until(deadline)
        channel = self._open()
        answers = self._answers
        method: Callable[..., Reply] = channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        try:
            reply = method(request, timeout=left_s, metadata=self._metadata)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                self._doubt(channel, answers)
            raise _failure(error) from error
        except ValueError as error:  # the channel was closed meanwhile
            raise Unreachable(f"no answer: {error}") from error
        with self._lock:
            self._answers += 1
        return reply

    def _open(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise Unreachable("the connection was closed")
            if self._channel is None:
                target = joined(self._served.host, self._served.port)
                if self._served.encrypts:
                    credentials = grpc.ssl_channel_credentials(_roots())
                    self._channel = grpc.secure_channel(target, credentials, _OPTIONS)
                else:
                    self._channel = grpc.insecure_channel(target, _OPTIONS)
            return self._channel

    def _doubt(self, channel: grpc.Channel, answers: int) -> None:
        """Give up a channel on which nothing came while a call had its time: it may be half open.

        gRPC would keep it for a quarter of an hour; its pings are no way, as servers by default
        end the connection of whoever pings more often than every five minutes.
        """
        with self._lock:
            if self._answers != answers or self._channel is not channel:
                return
            self._channel = None
        channel.close()


def _roots() -> bytes | None:
    """Return whom OpenSSL would trust by SSL_CERT_FILE, as over HTTP; None: gRPC's own roots."""
    file = os.environ.get("SSL_CERT_FILE", "")
    return Path(file).read_bytes() if file else None


def _outputs(reply: pb.InferReply) -> list[Part]:
    """Return the outputs of a reply. Raises ValueError for what is none."""
    if reply.raw_output_contents:
        bodies = reply.raw_output_contents
        if len(bodies) != len(reply.outputs):
            raise ValueError(f"it has {len(reply.outputs)} outputs, and bytes of {len(bodies)}")
        return [
            raw_part(each.name, each.datatype, each.shape, raw)
            for each, raw in zip(reply.outputs, bodies, strict=True)
        ]
    return [
        listed_part(each.name, each.datatype, each.shape, _listed(each)) for each in reply.outputs
    ]


def _listed(tensor: pb.InferTensor) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype, "")
    return list(getattr(tensor.contents, field)) if field else []


def _tensors(told: Sequence[pb.TensorMetadata]) -> tuple[Tensor, ...]:
    return tuple(Tensor(each.name, each.datatype, tuple(each.shape)) for each in told)


def _failure(error: Any) -> EdlError:
    """Return the error that a status other than OK is."""
    code, details = error.code(), error.details() or ""
    told = short(f"it says {code.name}: {details}")
    if _FULL in details.lower():
        return Busy(told)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in details.lower():
        return Busy(told)
    if code in _PASSES:
        return Unreachable(told)
    return Said(told + MAY_NOT if code in _MAY_NOT else told)
