"""The surroundings in which a fork of the tests' nursery is what a process of its own would be."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

_READ_AT_IMPORT = (
    *("GOMP_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "NUMBA_", "CUDA_"),
    *("MALLOC_", "GLIBC_", "LD_", "PYTHON", "EDL_FAULTS", "EDL_NET", "EDL_KERNEL"),
)
# Set in the tests' own processes by what these import: torch once it has compiled, scikit-learn, a
# benchmark, Lightning. None of them matters to a job.
_SET_MEANWHILE = (
    *("TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)
_SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def where(env: Mapping[str, str]) -> dict[str, str]:
    """Return what of this process's surroundings a fork of another one would not have.

    Variables that are read by what is imported, namespaces, the group of processes whose memory is
    limited together, limits, and the user.
    """
    names = [n for n in env if n.startswith(_READ_AT_IMPORT) and n not in _SET_MEANWHILE]
    found = {name: env[name] for name in names}
    found |= {space: os.readlink(f"/proc/self/ns/{space}") for space in _SPACES}
    with open("/proc/self/cgroup") as file:
        found["cgroups"] = file.read()
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    found |= {name: str(resource.getrlimit(getattr(resource, name))) for name in limits}
    return {**found, "user": str((os.getuid(), os.getgid()))}
