"""KServe's v2 protocol over gRPC, as the stand-in serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from edl.proto import kserve_pb2 as pb

from .kserve_model import DTYPES, Fault, Model, tensor_of

_LISTS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
} | {
    f"{sign}INT{bits}": f"{sign.lower()}int_contents" for sign in ("", "U") for bits in (8, 16, 32)
}


def service_of(server: Model) -> Any:
    calls: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "ServerLive": (pb.HealthRequest, lambda _: pb.HealthReply(is_so=True)),
        "ServerReady": (pb.HealthRequest, lambda _: pb.HealthReply(is_so=server.is_ready)),
        "ModelReady": (pb.ModelRequest, lambda asked: _ready(server, asked)),
        "ServerMetadata": (
            pb.ServerMetadataRequest,
            lambda _: pb.ServerMetadataReply(
                name="stand-in", version="1", extensions=server.extensions
            ),
        ),
        "ModelMetadata": (pb.ModelRequest, lambda asked: _metadata(server, asked)),
        "ModelConfig": (pb.ModelRequest, lambda asked: _config(server, asked)),
        "ModelInfer": (pb.InferRequest, lambda asked: _inferred_by_message(server, asked)),
    }

    def method(name: str, kind: Any, answer: Callable[[Any], Any]) -> Any:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            server.calls.append(name)
            server.headers = {str(key): str(value) for key, value in context.invocation_metadata()}
            try:
                return answer(request)
            except Fault as fault:
                context.abort(fault.grpc, str(fault))

        return grpc.unary_unary_rpc_method_handler(
            handle, kind.FromString, lambda reply: reply.SerializeToString()
        )

    return grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService",
        {name: method(name, kind, answer) for name, (kind, answer) in calls.items()},
    )


def _ready(server: Model, asked: pb.ModelRequest) -> pb.HealthReply:
    server.known(asked.name, asked.version)
    return pb.HealthReply(is_so=server.is_ready)


def _metadata(server: Model, asked: pb.ModelRequest) -> pb.ModelMetadataReply:
    server.known(asked.name, asked.version)
    return pb.ModelMetadataReply(
        name=asked.name,
        versions=server.versions,
        platform="stand-in",
        inputs=[pb.TensorMetadata(**spec.json()) for spec in server.inputs],
        outputs=[pb.TensorMetadata(**spec.json()) for spec in server.outputs],
    )


def _config(server: Model, asked: pb.ModelRequest) -> pb.ModelConfigReply:
    server.known(asked.name, asked.version)
    return pb.ModelConfigReply(config=pb.ModelConfig(max_batch_size=server.max_batch_size))


def _inferred_by_message(server: Model, asked: pb.InferRequest) -> pb.InferReply:
    version = server.known(asked.model_name, asked.model_version)
    raws: Sequence[bytes | None] = asked.raw_input_contents or [None] * len(asked.inputs)
    if len(raws) != len(asked.inputs):
        raise Fault("INVALID_ARG", f"{len(raws)} bodies of {len(asked.inputs)} inputs")
    given = [
        tensor_of(
            {"name": each.name, "datatype": each.datatype, "shape": [*each.shape]},
            raw,
            [*getattr(each.contents, _LISTS.get(each.datatype, "fp32_contents"))],
        )
        for each, raw in zip(asked.inputs, raws, strict=True)
    ]
    server.rows.append(len(given[0].values) if given else 0)
    reply = pb.InferReply(model_name=server.model, model_version=version, id=asked.id)
    for each in server.infer(given, [output.name for output in asked.outputs]):
        told = reply.outputs.add(name=each.name, datatype=each.datatype, shape=each.values.shape)
        values = each.values.astype(DTYPES[each.datatype])
        if server.writes_raw:
            reply.raw_output_contents.append(values.tobytes())
        else:
            getattr(told.contents, _LISTS[each.datatype]).extend(values.reshape(-1).tolist())
    return reply
