#!/bin/bash
# realnode.sh images | system | up | import FILE.tar | down
# A real node (containerd, runc, a CNI bridge and kubelet) beside the process nodes, in the
# network namespace of a cluster that `cluster.sh up` started. Its label is type=real. First:
# REAL=1 ./build.sh. Images come by `import`, a docker-archive such as buildah makes; `system` says
# where one of a small Debian is, on which others can be built.
set -u
. "$(dirname "$0")/common.sh"
IMAGES=$CACHE/images SOCKET=$STATE/containerd.sock NODE=node1
ctr_() { ctr -a "$SOCKET" -n k8s.io "$@"; }

images() {  # python, Debian's smallest system with it, and pause, the same with nothing to do
  [ -f "$IMAGES/pause.tar" ] && return
  rm -rf "$IMAGES"
  mkdir -p "$IMAGES"
  debootstrap --variant=minbase --include=python3 bookworm "$IMAGES/rootfs" \
    "$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)" \
    >"$CACHE/debootstrap.log" 2>&1 || { tail -n 5 "$CACHE/debootstrap.log" >&2; exit 1; }
  rm -rf "$IMAGES"/rootfs/var/{cache/apt/*,lib/apt/lists/*} "$IMAGES"/rootfs/usr/share/{doc,man,locale}
  image python --cmd python3
  image pause --entrypoint '["sleep", "infinity"]'
  rm -rf "$IMAGES/rootfs"
}

PATHS=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
image() {  # image NAME CONFIGURATION...: of the system's files
  local store="--root $IMAGES/store --runroot $STATE/buildah --storage-driver vfs" container
  container=$(buildah $store from scratch) && buildah $store copy -q "$container" "$IMAGES/rootfs" / &&
    buildah $store config --env "PATH=$PATHS" "${@:2}" "$container" &&
    buildah $store commit -q --rm "$container" "docker-archive:$IMAGES/$1.tar:docker.io/local/$1:1" || exit 1
  rm -rf "$IMAGES/store"
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
podLogsDir: $STATE/pod-logs
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
