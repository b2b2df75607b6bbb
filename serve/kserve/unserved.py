"""What Triton's client may ask for and this server has not, each with a word why. Pure.

Whatever would change an answer is refused, never passed over: a client that asks for the best
classes would take the values that come instead for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .refused import Refused, Why

_LOADING = (
    "models are not loaded and unloaded by calls: they come by what edl serve was started with, "
    "and their newer versions by --watch_s and --follow"
)
_MEMORY = "tensors do not travel by shared memory: send their bytes (binary_tensor_data)"
_STREAM = "streams of requests are not served: send each one by ModelInfer"
_TEXT = "texts are not generated here: ask by /infer"
_SETTINGS = "traces and logs are not set by calls: see edl serve --help"
_CLASSES = (
    "the best classes are not sought here (classification, class_count): ask for the values, and "
    "take the largest"
)
_SEQUENCE = "sequences are not served: each request stands alone (sequence_id, sequence_start)"

_PATHS = {
    "/v2/repository/models/": _LOADING,
    "/v2/systemsharedmemory": _MEMORY,
    "/v2/cudasharedmemory": _MEMORY,
    "/v2/trace/": _SETTINGS,
    "/v2/logging": _SETTINGS,
}
_VERBS = {"trace": _SETTINGS, "generate": _TEXT, "generate_stream": _TEXT}
CALLS = {
    "ModelStreamInfer": _STREAM,
    "RepositoryModelLoad": _LOADING,
    "RepositoryModelUnload": _LOADING,
    "TraceSetting": _SETTINGS,
    "LogSettings": _SETTINGS,
    **{
        f"{kind}SharedMemory{what}": _MEMORY
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
}
_OF_REQUESTS = dict.fromkeys(("sequence_id", "sequence_start", "sequence_end"), _SEQUENCE)
_OF_TENSORS = {"classification": _CLASSES, "shared_memory_region": _MEMORY}


def check_path(path: str) -> None:
    """Raise Refused for a path of Triton's that nothing answers here."""
    for begin, why in _PATHS.items():
        if path.startswith(begin):
            raise Refused(Why.UNSERVED, why)


def check_verb(verb: str) -> None:
    """Raise Refused for what Triton can do with a model and nothing does here."""
    if verb in _VERBS:
        raise Refused(Why.UNSERVED, _VERBS[verb])


def check_json(told: Mapping[str, Any]) -> None:
    """Raise Refused where parameters of a request, an object of JSON, would change the answer."""
    _check(told.get("parameters"), _OF_REQUESTS)
    for name in ("inputs", "outputs"):
        tensors = told.get(name)
        for each in tensors if isinstance(tensors, list) else ():
            if isinstance(each, dict) and "parameters" in each:
                _check(each["parameters"], _OF_TENSORS)


def check_message(message: Any) -> None:
    """Raise Refused where those of an InferRequest would."""
    _check(_values(message.parameters), _OF_REQUESTS)
    for each in (*message.inputs, *message.outputs):
        _check(_values(each.parameters), _OF_TENSORS)


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(each, kind)
        for name, each in parameters.items()
        if (kind := each.WhichOneof("choice"))
    }


def _check(parameters: Any, words: Mapping[str, str]) -> None:
    if not isinstance(parameters, dict):
        return
    for name, why in words.items():
        if parameters.get(name):
            raise Refused(Why.UNSERVED, why)
