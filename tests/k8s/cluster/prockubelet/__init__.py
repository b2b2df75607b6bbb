"""A process kubelet: nodes of a real Kubernetes cluster whose pods are processes of this machine.

Registers N Node objects, heartbeats them, watches the pods that the real scheduler binds to them,
and runs each container as local processes in namespaces of their own (pid, mount, uts, ipc, and the
pod's network), with a copy-on-write root over this machine's files: no image, no container runtime.

Honoured: command and args, env, envFrom and valueFrom, workingDir, initContainers and sidecars
among them, restartPolicy and CrashLoopBackOff, grace periods (SIGTERM, then SIGKILL), exit codes,
signals, OOMKilled (memory limits, where the machine has cgroup v1), volumes of emptyDir, hostPath,
configMap, secret, downwardAPI, persistentVolumeClaim and projections, which follow their objects,
service account tokens (bound to the pod, 600 s), logs, image names that are not known. The
environment is the image's and the pod's alone.
Not: images' content, probes, exec, hooks, securityContext (all run as root), cpu limits, fsGroup.

Standard library only: it runs under the machine's own Python.
"""
