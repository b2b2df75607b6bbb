"""One container of a pod: started, restarted after its policy, killed, and what it tells."""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from .api import now, quantity

MEMORY = Path("/sys/fs/cgroup/memory")  # cgroup v1
SCRIPT = Path(__file__).with_name("container.sh")
# The first child after `unshare -p` is process 1. Not `unshare -f`: util-linux 2.38 loses the
# signal that a child died of. The shell's own "Killed" is no part of the container's log.
WRAP = 'exec 3>&2 2>/dev/null; /bin/sh "$0" "$@" 2>&3 3>&-; exit $?'
NICE = "5"  # the control plane must not starve behind the pods: a late heartbeat is a lost node
BACKOFF_S, BACKOFF_MAX_S, BACKOFF_RESET_S = 1.0, 30.0, 600.0  # kubelet's: 10, 300, 600
# What a container runtime gives where the image says nothing.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NSENTER, UNSHARE = shutil.which("nsenter"), shutil.which("unshare")
_VARIABLE = re.compile(r"\$\$|\$\(([^)]+)\)")


class Container:
    def __init__(self, pod, spec, *, init=False):
        self.pod, self.spec, self.init = pod, spec, init
        self.name = spec["name"]
        self.sidecar = init and spec.get("restartPolicy") == "Always"
        self.restarts = 0
        self.process = self.thread = None
        self.begun, self.over = threading.Event(), threading.Event()  # for a sidecar
        self.last = {}
        waits = pod.inits and not init
        self.state = {"waiting": {"reason": "PodInitializing" if waits else "ContainerCreating"}}

    @property
    def exit_code(self):
        """Return the exit code, None where it has not ended."""
        return self.state.get("terminated", {}).get("exitCode")

    def status(self):
        running = "running" in self.state
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "process",
            "restartCount": self.restarts,
            "ready": running if self.sidecar or not self.init else self.exit_code == 0,
            "started": running,
            "state": self.state,
            "lastState": self.last,
            "containerID": self._id(),
        }

    def _id(self):
        return f"process://{self.pod.uid}-{self.name}-{self.restarts}"

    def start(self, policy):
        def run():
            try:
                self.run(policy)
            finally:
                self.begun.set()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def join(self, timeout_s=None):
        if self.thread is not None:
            self.thread.join(timeout_s)

    def run(self, policy):
        """Run until the restart policy is content; return the exit code."""
        delay_s = BACKOFF_S
        while True:
            started, began = now(), time.monotonic()
            code, reason = self._once(started)
            self.state = {"terminated": self._ended(code, reason, started)}
            content = policy == "Never" or (policy == "OnFailure" and code == 0)
            if self.pod.stopping.is_set() or self.over.is_set() or content:
                if len(self.pod.containers) > 1 or self.init or self.pod.sidecars:
                    self.pod.push()  # the last one's end goes out together with the pod's phase
                return code
            self.pod.push()
            if time.monotonic() - began > BACKOFF_RESET_S:
                delay_s = BACKOFF_S
            self.last = self.state
            message = f"back-off {delay_s:.0f}s restarting failed container"
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self.pod.push()
            if self.pod.stopping.wait(delay_s):
                self.state = self.last
                return code
            delay_s = min(BACKOFF_MAX_S, delay_s * 2)
            self.restarts += 1

    def _ended(self, code, reason, started):
        end = {
            "exitCode": code,
            "reason": reason,
            "startedAt": started,
            "finishedAt": now(),
            "containerID": self._id(),
        }
        return {**end, "signal": code - 128} if code > 128 else end

    def _once(self, started):
        """Run it once. Answers exit code and reason."""
        pod = self.pod
        image = pod.node.image(self.spec.get("image", ""))
        if image is None:
            return self._without_image()
        env = self._env(image)
        command = [_expand(word, env) for word in self._command(image)]
        folder = pod.folder / f"{self.name}-{self.restarts}"
        for part in ("upper", "work"):
            (folder / part).mkdir(parents=True)
        (folder / "mounts").write_text("".join(self._mounts(image)))
        groups = self._memory_groups()
        env |= {
            "PK_GROUPS": " ".join(map(str, groups)),
            "PK_HOST": pod.host,
            "PK_DIR": str(folder),
            "PK_POD": str(pod.folder),
            "PK_CWD": self.spec.get("workingDir") or image.get("cwd", "/"),
            "PK_NICE": NICE,
        }
        enter = [NSENTER, f"--net=/run/netns/{pod.netns}"] if pod.netns else []
        unshare = [UNSHARE, "-m", "-u", "-p", "-i", "--", "/bin/sh", "-c", WRAP, str(SCRIPT)]
        with open(pod.logs / f"{self.name}-{self.restarts}.log", "ab", 0) as out:
            self.process = subprocess.Popen(
                [*enter, *unshare, *command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            self.state = {"running": {"startedAt": started}}
            self.begun.set()
            pod.push()
            if pod.stopping.is_set() and not self.sidecar or self.over.is_set():
                self.kill(signal.SIGKILL)
            code = self.process.wait()
        oom = any(_oom_kills(group) for group in groups)
        for group in groups:
            with contextlib.suppress(OSError):  # a straggler is in it
                group.rmdir()
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)
        code = code if code >= 0 else 128 - code
        return code, "OOMKilled" if oom and code else "Error" if code else "Completed"

    def _without_image(self):
        name, policy = self.spec.get("image"), self.spec.get("imagePullPolicy")
        reason = "ErrImageNeverPull" if policy == "Never" else "ImagePullBackOff"
        self.state = {"waiting": {"reason": reason, "message": f'no image "{name}" on this node'}}
        self.begun.set()
        self.pod.push()
        self.pod.stopping.wait()
        return 137, "Error"

    def _command(self, image):
        spec = self.spec
        if spec.get("command"):
            return [*spec["command"], *(spec.get("args") or [])]
        return [*image.get("entrypoint", []), *(spec.get("args") or image.get("cmd", []))]

    def _mounts(self, image):
        for mount in self.spec.get("volumeMounts") or []:
            source = self.pod.volumes.path(mount["name"])
            if mount.get("subPath"):
                source = source / mount["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)  # as a kubelet does
            yield f"{source}|{mount['mountPath']}|{mount.get('readOnly', False)}\n"
        for path in image.get("binds", []):  # last: a volume may be mounted above it, at /tmp say
            yield f"{path}|{path}|True\n"

    def _memory_groups(self):
        limit = ((self.spec.get("resources") or {}).get("limits") or {}).get("memory")
        if limit is None or not (MEMORY / "cgroup.procs").exists():
            return []
        group = MEMORY / self.pod.node.cgroup / f"{self.pod.uid}-{self.name}-{self.restarts}"
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(int(quantity(limit))))
        return [group]

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self, number):
        """Signal process 1 of the container, which is the wrapping shell's only child."""
        if not self.is_running():
            return
        shell = self.process.pid
        with contextlib.suppress(OSError):  # it has just ended
            children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
            os.kill(int(children[0]) if children else shell, number)

    def _env(self, image):
        pod, data = self.pod, self.pod.volumes.data
        env = {
            "PATH": PATH,
            "HOME": "/root",
            "HOSTNAME": pod.host,
            **image.get("env", {}),
            **pod.service_env(),
        }
        for source in self.spec.get("envFrom") or []:
            for kind, key in (("configmaps", "configMapRef"), ("secrets", "secretRef")):
                if key in source:
                    prefix = source.get("prefix", "")
                    values = data(kind, source[key]["name"], source[key].get("optional"))
                    env |= {prefix + name: value.decode() for name, value in values.items()}
        own = {}  # $(NAME) in a value means a variable that stands before it in the pod
        for variable in self.spec.get("env") or []:
            value = self._value(variable, own)
            if value is not None:
                own[variable["name"]] = value
        return {**env, **own}

    def _value(self, variable, before):
        """Return the value of a variable, None where an optional key is not there."""
        source = variable.get("valueFrom") or {}
        if not source:
            return _expand(variable.get("value") or "", before)
        if "fieldRef" in source:
            return self.pod.field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            kind, name = source["resourceFieldRef"]["resource"].split(".", 1)
            return str(math.ceil(quantity(self.spec["resources"][kind][name])))
        kind, key = (
            ("configmaps", "configMapKeyRef")
            if "configMapKeyRef" in source
            else ("secrets", "secretKeyRef")
        )
        ref = source[key]
        values = self.pod.volumes.data(kind, ref["name"], ref.get("optional"))
        if ref["key"] not in values and ref.get("optional"):
            return None
        return values[ref["key"]].decode()


def _expand(text, env):
    """Expand $(NAME) as Kubernetes does; $$ is a dollar; a name that is not known stays."""
    return _VARIABLE.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def _oom_kills(group):
    found = re.search(r"oom_kill (\d+)", (group / "memory.oom_control").read_text())
    return int(found[1]) if found else 0
