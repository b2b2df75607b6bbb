"""gRPC's server reflection: a client such as grpcurl asks which services and messages there are."""

from __future__ import annotations

import os
from typing import Any

from .errors import UsageError
from .extras import install

VARIABLE = "EDL_GRPC_REFLECTION"


def reflect(server: Any, *protos: Any) -> None:
    """Let the server tell the services of these modules, where EDL_GRPC_REFLECTION is 1.

    `server`: of grpc or grpc.aio, before it starts. `protos`: generated modules, such as
    master_pb2. Raises UsageError where the package of reflection is not installed.
    """
    if os.environ.get(VARIABLE) != "1":
        return
    try:
        from grpc_reflection.v1alpha import reflection
    except ImportError as error:
        raise UsageError(
            f"{VARIABLE}=1 needs grpcio-reflection: {install('reflection')}, or leave it out."
        ) from error
    names = [s.full_name for p in protos for s in p.DESCRIPTOR.services_by_name.values()]
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
