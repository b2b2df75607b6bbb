"""The cgroups that this process is in, as folders: v2 has one tree, v1 one for each controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

OWN = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def groups_of(controller: str, own: Path = OWN, mount: Path = MOUNT) -> Iterator[tuple[Path, Path]]:
    """Yield where the group of a controller may stand: its tree, and the group's folder in that.

    In a container the path may be the host's, while the tree begins at the group itself. There is
    none where the kernel, or a sandbox, does not tell.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if not controllers:  # v2, which has all
            trees = [mount]
        elif controller in controllers.split(","):
            trees = [mount / controllers, mount / controller]
        else:
            continue
        for tree in trees:
            yield tree, tree / path.strip("/")
