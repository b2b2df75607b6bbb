"""Make a docker-archive of folders, one layer each: no registry, no daemon.

mkimage.py NAME OUT.tar DIR[:DIR2...] [--entrypoint JSON] [--cmd JSON] [--env K=V]
           [--workdir DIR]
"""

import argparse
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def arguments():
    parser = argparse.ArgumentParser(prog="mkimage.py")
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("folders")
    parser.add_argument("--entrypoint", type=json.loads, default=None)
    parser.add_argument("--cmd", type=json.loads, default=None)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir", default="/")
    return parser.parse_args()


def digest(path):
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def add(archive, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def main():
    given = arguments()
    layers = []  # digests
    part = given.out.with_suffix(".layer")
    with tarfile.open(given.out, "w") as archive:
        for folder in given.folders.split(":"):
            pack = ["tar", "-C", folder, "--numeric-owner", "--one-file-system", "--sort=name"]
            subprocess.run([*pack, "-cf", str(part), "."], check=True)
            layers.append(digest(part))
            archive.add(part, f"{layers[-1]}/layer.tar")
            part.unlink()
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": given.entrypoint,
                "Cmd": given.cmd,
                "WorkingDir": given.workdir,
                "Env": [PATH, *given.env],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}" for layer in layers]},
            "history": [{"created_by": "mkimage"}] * len(layers),
        }
        data = json.dumps(config).encode()
        name = f"{hashlib.sha256(data).hexdigest()}.json"
        add(archive, name, data)
        manifest = {
            "Config": name,
            "RepoTags": [given.name],
            "Layers": [f"{layer}/layer.tar" for layer in layers],
        }
        add(archive, "manifest.json", json.dumps([manifest]).encode())


main()
