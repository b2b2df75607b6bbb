"""A pod's volumes: folders of this machine, filled and kept as their objects are.

What a ConfigMap, a Secret or a projection holds is swapped as a whole, as a kubelet does: its files
are links into `..data`, itself a link that is replaced. So a mount follows its objects, and one
with a subPath does not. A service account's token is bound to the pod, lives for TOKEN_S at most,
and is asked for anew at 80 % of its life.
"""

import base64
import shutil
import tempfile
import threading
from pathlib import Path

from .api import ApiError, log

TOKEN_S = 600  # what the API server gives at least; admission asks for 3,607 of its own accord
RENEW_AT = 0.8
SOONER = "prockubelet/renew-at"  # a pod's annotation: at another part of it
AGAIN_S = 5.0  # after a token was refused
KINDS = {"configMap": "configmaps", "secret": "secrets"}


class Volumes:
    def __init__(self, pod):
        self.pod = pod
        self.made = {}  # folder -> its volume, of those that follow objects
        self.written = {}  # folder -> its files as they were written last
        self.tokens = {}  # audience and seconds asked for -> token
        self.lock = threading.Lock()
        self.over = threading.Event()

    def close(self):
        self.over.set()

    def data(self, kind, name, optional=False):
        """Return keys and bytes of a ConfigMap or Secret; the pod waits until it is there."""
        pod = self.pod
        while True:
            try:
                found = pod.api.call("GET", f"/api/v1/namespaces/{pod.namespace}/{kind}/{name}")
                break
            except ApiError as error:
                if error.code == 404 and optional:
                    return {}
                if error.code != 404 or pod.stopping.wait(0.3):
                    raise
        values = found.get("data") or {}
        if kind == "secrets":
            return {key: base64.b64decode(value) for key, value in values.items()}
        more = found.get("binaryData") or {}
        texts = {key: value.encode() for key, value in values.items()}
        return texts | {key: base64.b64decode(value) for key, value in more.items()}

    def path(self, name):
        """Return the folder or file on this machine that is the volume."""
        pod = self.pod
        volume = next(v for v in pod.spec["volumes"] if v["name"] == name)
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            return path
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            path = pod.node.claims_folder / pod.namespace / claim
            path.mkdir(parents=True, exist_ok=True)
            return path
        path = pod.folder / f"volume-{name}"
        with self.lock:
            path.mkdir(parents=True, exist_ok=True)
            if path not in self.made and _sources(volume):
                self.made[path] = volume
                self._fill(path)
        return path

    def follow(self, kind, name):
        """Fill anew what holds this ConfigMap or Secret, which has changed."""
        with self.lock:
            for path, volume in self.made.items():
                if (kind, name) in _objects(volume):
                    try:
                        self._fill(path)
                    except (ApiError, KeyError) as error:  # it is gone: what was there stays
                        log("volume", path, repr(error))

    def _fill(self, path):
        volume = self.made[path]
        kind = next(kind for kind in ("projected", "downwardAPI", *KINDS) if kind in volume)
        mode = volume[kind].get("defaultMode", 0o644)
        files = {}
        for source in _sources(volume):
            files |= self._files(source, mode)
        if self.written.get(path) != files:
            _swap(path, files)
            self.written[path] = files

    def _files(self, source, mode):
        """Return what one source gives: path -> (bytes, mode)."""
        if told := source.get("serviceAccountToken"):
            return {told["path"]: (self._token(told), mode)}
        if told := source.get("downwardAPI"):
            return {
                item["path"]: (
                    self.pod.field(item["fieldRef"]["fieldPath"]).encode(),
                    item.get("mode", mode),
                )
                for item in told.get("items") or []
            }
        key = next(key for key in KINDS if key in source)
        ref = source[key]
        name, optional = ref.get("secretName") or ref.get("name"), ref.get("optional", False)
        values = self.data(KINDS[key], name, optional)
        items = ref.get("items") or [{"key": key, "path": key} for key in values]
        return {
            item["path"]: (values[item["key"]], item.get("mode", mode))
            for item in items
            if item["key"] in values or not optional
        }

    # -- tokens

    def _token(self, asked):
        key = asked.get("audience", ""), asked.get("expirationSeconds", 3600)
        if key not in self.tokens:
            self.tokens[key] = self._ask(*key)
            threading.Thread(target=self._renew, args=key, daemon=True).start()
        return self.tokens[key]

    def _ask(self, audience, seconds):
        pod = self.pod
        account = pod.spec.get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.pod_name, "uid": pod.uid}
        spec = {"expirationSeconds": min(seconds, TOKEN_S), "boundObjectRef": bound}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return pod.api.call("POST", path, body)["status"]["token"].encode()

    def _renew(self, audience, seconds):
        told = self.pod.found["metadata"].get("annotations") or {}
        pause_s = usual_s = min(seconds, TOKEN_S) * float(told.get(SOONER, RENEW_AT))
        while not self.over.wait(pause_s):
            try:
                token = self._ask(audience, seconds)
            except ApiError as error:
                log("token", self.pod.path, error)
                pause_s = AGAIN_S
                continue
            pause_s = usual_s
            with self.lock:
                self.tokens[audience, seconds] = token
                for path, volume in self.made.items():
                    if any("serviceAccountToken" in source for source in _sources(volume)):
                        self._fill(path)


def _sources(volume):
    """Return what fills a volume from the cluster; nothing of an emptyDir."""
    if "projected" in volume:
        return volume["projected"].get("sources") or []
    return [volume] if {"downwardAPI", *KINDS} & set(volume) else []


def _objects(volume):
    """Return kind and name of the objects that a volume follows."""
    return {
        (kind, source[key].get("secretName") or source[key].get("name"))
        for source in _sources(volume)
        for key, kind in KINDS.items()
        if key in source
    }


def _swap(folder, files):
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    fresh.chmod(0o755)
    for name, (data, mode) in files.items():
        file = fresh / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(mode)
    now, link = folder / "..data", folder / "..data_new"
    before = now.resolve() if now.is_symlink() else None
    link.symlink_to(fresh.name)
    link.rename(now)
    tops = {Path(name).parts[0] for name in files}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"..data/{top}")
    for gone in folder.iterdir():
        if not gone.name.startswith("..") and gone.name not in tops:
            gone.unlink()
    if before is not None:
        shutil.rmtree(before)
