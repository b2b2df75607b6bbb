"""KServe's v2 protocol over gRPC: /inference.GRPCInferenceService/..., in the loop of HTTP.

With a token, whoever comes without it is refused before a message of his is taken in.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from ...common.token_check import TOKEN_KEY
from ...proto import kserve_pb2 as pb
from . import answers, config, tensors, unserved
from .asking import Asking
from .refused import Refused
from .tensors import Arrays

SERVICE = "inference.GRPCInferenceService"
_OPEN = {f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady"}  # to a kubelet, which has no token
_REFUSED = "the token is missing or wrong: send the metadata authorization: Bearer TOKEN"


def bounds(
    body_nbytes: int, connections: int, *, begin_s: float = 10.0, idle_s: float = 60.0
) -> list[tuple[str, int]]:
    """Return the options of a server: the largest message, and what connections may cost.

    `begin_s`: for a handshake; `idle_s`: without a call, after which a client connects anew.
    """
    return [
        ("grpc.max_receive_message_length", body_nbytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(begin_s * 1000)),
        ("grpc.max_connection_idle_ms", int(idle_s * 1000)),
    ]


class Service:
    """The calls of the protocol."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the service, for a server to take."""
        calls: dict[str, tuple[Any, Callable[[Any], Awaitable[Message] | Message]]] = {
            "ServerLive": (pb.HealthRequest, lambda _asked: pb.HealthReply(is_so=True)),
            "ServerReady": (pb.HealthRequest, self._ready),
            "ModelReady": (pb.ModelRequest, self._model_ready),
            "ServerMetadata": (pb.ServerMetadataRequest, self._server),
            "ModelMetadata": (pb.ModelRequest, self._model),
            "ModelInfer": (pb.InferRequest, self._infer),
            "ModelConfig": (pb.ModelRequest, self._config),
            "ModelStatistics": (pb.ModelRequest, self._statistics),
            "RepositoryIndex": (pb.RepositoryIndexRequest, self._index),
        }
        handlers = {name: _handler(*call) for name, call in calls.items()}
        refused = {name: _refusing(why) for name, why in unserved.CALLS.items()}
        return grpc.method_handlers_generic_handler(SERVICE, handlers | refused)

    def _ready(self, _asked: pb.HealthRequest) -> pb.HealthReply:
        return pb.HealthReply(is_so=not self._asking.repository.unready())

    def _model_ready(self, asked: pb.ModelRequest) -> pb.HealthReply:
        return pb.HealthReply(is_so=not self._asking.unready(asked.name, asked.version))

    def _server(self, _asked: pb.ServerMetadataRequest) -> pb.ServerMetadataReply:
        told = self._asking.server()
        return pb.ServerMetadataReply(
            name=told["name"], version=told["version"], extensions=told["extensions"]
        )

    def _model(self, asked: pb.ModelRequest) -> pb.ModelMetadataReply:
        told = self._asking.model(asked.name, asked.version)
        return pb.ModelMetadataReply(
            name=told["name"],
            versions=told["versions"],
            platform=told["platform"],
            inputs=[pb.TensorMetadata(**each) for each in told["inputs"]],
            outputs=[pb.TensorMetadata(**each) for each in told["outputs"]],
        )

    def _config(self, asked: pb.ModelRequest) -> pb.ModelConfigReply:
        told = self._asking.config(asked.name, asked.version)
        for each in (*told["input"], *told["output"]):
            each["data_type"] = config.DATA_TYPES[each["data_type"]]
        return pb.ModelConfigReply(config=pb.ModelConfig(**told))

    def _statistics(self, asked: pb.ModelRequest) -> pb.ModelStatisticsReply:
        return pb.ModelStatisticsReply(**self._asking.statistics(asked.name, asked.version))

    def _index(self, asked: pb.RepositoryIndexRequest) -> pb.RepositoryIndexReply:
        return pb.RepositoryIndexReply(models=self._asking.index(asked.ready))

    async def _infer(self, asked: pb.InferRequest) -> pb.InferReply:
        question, answer, version = await self._asking.infer(
            asked.model_name,
            asked.model_version,
            lambda inputs, outputs: tensors.from_message(asked, inputs, outputs),
            large=asked.ByteSize() > tensors.LARGE_NBYTES,
        )
        outputs = answers.chosen(answer, question)
        if answers.is_large(outputs):
            return await asyncio.to_thread(_reply, asked, version, outputs)
        return _reply(asked, version, outputs)


def _reply(asked: pb.InferRequest, version: str, outputs: Arrays) -> pb.InferReply:
    return pb.InferReply(
        model_name=asked.model_name,
        model_version=version,
        id=asked.id,
        outputs=[
            pb.InferTensor(name=name, datatype=tensors.datatype_of(each), shape=each.shape)
            for name, each in outputs.items()
        ],
        raw_output_contents=[answers.packed(each) for each in outputs.values()],
    )


def _handler(
    request: Any, call: Callable[[Any], Awaitable[Message] | Message]
) -> grpc.RpcMethodHandler[Any, Any]:
    async def answer(asked: Any, context: Any) -> Message:
        try:
            found = call(asked)
            return found if isinstance(found, Message) else await found
        except Refused as error:
            await context.abort(error.why.code, str(error))
            raise

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=lambda reply: reply.SerializeToString(),
    )


def _refusing(why: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Return what refuses calls, of one message or of a stream."""

    async def refuse(_messages: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, why)

    return grpc.stream_stream_rpc_method_handler(refuse)


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """A check that refuses calls without the token, but for the server's health."""

    def __init__(self, token: str) -> None:
        self._token, self._bearer = token.encode(), f"Bearer {token}".encode()

        async def refuse(_messages: object, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSED)

        # Of the streaming kind: gRPC takes a message in only where the handler wants one.
        self._refuse = grpc.stream_stream_rpc_method_handler(refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        given = dict(details.invocation_metadata or ())
        bearer = str(given.get("authorization", "")).encode()
        token = str(given.get(TOKEN_KEY, "")).encode()
        if (
            hmac.compare_digest(bearer, self._bearer)
            or hmac.compare_digest(token, self._token)
            or details.method in _OPEN
        ):
            return await continuation(details)
        return self._refuse
