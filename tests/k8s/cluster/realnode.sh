#!/bin/bash
# realnode.sh images | system | up | import FILE.tar | down
# A real node (containerd, runc, a CNI bridge and kubelet) beside the process nodes, in the
# network namespace of a cluster that `cluster.sh up` started. Its label is type=real. First:
# REAL=1 ./build.sh. Images come by `import`, a docker-archive such as mkimage.py makes; `system` says
# where one of a small Debian is, on which others can be built.
set -u
. "$(dirname "$0")/common.sh"
IMAGES=$CACHE/images SOCKET=$STATE/containerd.sock NODE=node1
ctr_() { ctr -a "$SOCKET" -n k8s.io "$@"; }

images() {  # pause, a static C program, and python, Debian's smallest system with it
  mkdir -p "$IMAGES/pause"
  cd "$IMAGES" || exit 1
  if [ ! -f pause.tar ]; then
    cat >pause.c <<'X'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void quit(int s) { _exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main() { signal(SIGINT, quit); signal(SIGTERM, quit); signal(SIGCHLD, reap); for (;;) pause(); }
X
    gcc -Os -static -s -o pause/pause pause.c || exit 1
    python3 "$HERE/mkimage.py" docker.io/local/pause:1 pause.tar pause --entrypoint '["/pause"]'
  fi
  if [ ! -f python.tar ]; then
    debootstrap --variant=minbase --include=python3 bookworm "$IMAGES/rootfs" \
      "$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)" \
      >"$CACHE/logs/debootstrap.log" 2>&1 || { tail -n 5 "$CACHE/logs/debootstrap.log" >&2; exit 1; }
    rm -rf rootfs/var/cache/apt/* rootfs/var/lib/apt/lists/* rootfs/usr/share/{doc,man,locale}
    python3 "$HERE/mkimage.py" docker.io/local/python:1 python.tar rootfs --cmd '["python3"]'
  fi
}

system() { images && echo "$IMAGES/python.tar"; }

configure() {
  mkdir -p "$STATE/cni" "$STATE/kubelet" "$STATE/containerd"
  cat >"$STATE/cni/10-bridge.conflist" <<X
{"cniVersion": "0.4.0", "name": "k8s", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$STATE/cni/ipam",
            "ranges": [[{"subnet": "10.245.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
X
  cat >"$STATE/containerd.toml" <<X
version = 2
root = "$STATE/containerd/root"
state = "$STATE/containerd/state"
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE it cannot be lowered
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$STATE/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
X
  cat >"$STATE/kubelet.yaml" <<X
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: ["$DNS_IP"]
clusterDomain: cluster.local
resolvConf: /dev/null
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
nodeStatusUpdateFrequency: 3s
makeIPTablesUtilChains: true
tlsCertFile: $PKI/apiserver.crt
tlsPrivateKeyFile: $PKI/apiserver.key
readOnlyPort: 0
oomScoreAdj: 0
maxPods: 110
containerRuntimeEndpoint: unix://$SOCKET
failCgroupV1: false
X
}

import() {
  ctr_ images import --no-unpack=false "$1" >/dev/null 2>&1 || ctr_ images import "$1"
}

up() {
  images
  configure
  start containerd containerd --config "$STATE/containerd.toml"
  until_ 20 containerd eval 'ctr_ version >/dev/null 2>&1' || exit 1
  for image in pause python; do
    ctr_ images ls -q | grep -q "local/$image:" || import "$IMAGES/$image.tar" || exit 1
  done
  start kubelet "$BIN/kubelet" --config="$STATE/kubelet.yaml" --kubeconfig="$PKI/node.kubeconfig" \
    --root-dir="$STATE/kubelet" --hostname-override=$NODE --node-ip=$NODE_IP \
    --register-node=true --node-labels=type=real --cert-dir="$STATE/kubelet/pki" --v=2
}

forget_logs() {  # of this node's pods; a kubelet would have removed them some time later
  local folder
  for folder in /var/log/pods/*_*; do
    grep -q "${folder##*_}" "$LOGS/kubelet.log" 2>/dev/null && rm -rf "$folder"
  done
  find /var/log/containers -xtype l -delete 2>/dev/null
}

down() {
  stop kubelet
  alive containerd || return 0
  for task in $(ctr_ task ls -q 2>/dev/null); do ctr_ task kill -s KILL "$task" 2>/dev/null; done
  sleep 1
  for container in $(ctr_ containers ls -q 2>/dev/null); do
    ctr_ task rm -f "$container" >/dev/null 2>&1
    ctr_ containers rm "$container" >/dev/null 2>&1
  done
  stop containerd
  forget_logs
  for file in "$STATE"/containerd/state/io.containerd.runtime.v2.task/k8s.io/*/init.pid; do
    [ -f "$file" ] && kill -KILL "$(cat "$file")" 2>/dev/null
  done
  find /sys/fs/cgroup/*/kubepods -depth -type d -exec rmdir {} + 2>/dev/null  # those that are empty
  return 0
}

case ${1:-} in
  images | system | up | import | down) "$@" ;;
  *) sed -n 2p "$0" >&2; exit 2 ;;
esac
