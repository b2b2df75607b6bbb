#!/bin/bash
# cluster.sh up | nodes [ARGUMENTS OF prockubelet] | down | stop NAME [SIGNAL]
# etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy and a name server in one
# network namespace, the API at https://127.0.0.1:$PORT of this machine, and process nodes.
# `up` starts what does not run: after `stop apiserver` it brings that back.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
GRACE=${GRACE:-12s}     # without a heartbeat for so long a node is lost (Kubernetes: 40s)
EVICT=${EVICT:-3}       # seconds until a lost node's pods are evicted (Kubernetes: 300)

api() { curl -sk -m 2 -H "Authorization: Bearer $(cat "$PKI/admin.token")" "https://127.0.0.1:$PORT$1"; }
ready() { [ "$(api /readyz)" = ok ]; }
there() { api "$1" | grep -q '"uid"'; }
services() { inside curl -sk -m 1 -o /dev/null "https://$API_IP:443/readyz"; }

certificates() {
  [ -f "$PKI/done" ] && return
  mkdir -p "$PKI"; cd "$PKI" || exit
  openssl ecparam -genkey -name prime256v1 -noout -out ca.key
  openssl req -x509 -new -key ca.key -subj /CN=k8s-ca -days 3650 -out ca.crt 2>/dev/null
  openssl ecparam -genkey -name prime256v1 -noout -out apiserver.key
  openssl req -new -key apiserver.key -subj /CN=kube-apiserver -out apiserver.csr 2>/dev/null
  local names; names=$(printf ',DNS:%s' localhost kubernetes{,.default{,.svc{,.cluster.local}}})
  echo "subjectAltName=IP:127.0.0.1,IP:$NODE_IP,IP:$API_IP$names" >san
  openssl x509 -req -in apiserver.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 \
    -extfile san -out apiserver.crt 2>/dev/null
  openssl genrsa -out sa.key 2048 2>/dev/null
  openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
  user admin admin system:masters
  for name in kube-controller-manager kube-scheduler kube-proxy; do user $name system:$name; done
  user node system:node:node1 system:nodes
  sed "s#$SERVER#https://127.0.0.1:$PORT#" admin.kubeconfig >"$STATE/kubeconfig"
  touch done
}

user() {  # user FILE NAME [GROUP]
  local token; token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  echo "$token,$2,$1${3:+,\"$3\"}" >>tokens.csv
  echo "$token" >"$1.token"
  cat >"$1.kubeconfig" <<X
apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "$SERVER", certificate-authority: $PKI/ca.crt}}]
users: [{name: user, user: {token: "$token"}}]
contexts: [{name: context, context: {cluster: cluster, user: user}}]
current-context: context
X
}

network() {
  [ -e "/run/netns/$CLUSTER" ] && return
  ip netns add "$CLUSTER"
  local ip="ip -n $CLUSTER"
  $ip link set lo up
  $ip addr add $DNS_IP/32 dev lo
  $ip link add eth0 type veth peer name eth0p
  $ip addr add $NODE_IP/24 dev eth0
  $ip link set eth0p up
  $ip link set eth0 up
  $ip link add $BRIDGE type bridge
  $ip addr add 10.244.0.1/16 dev $BRIDGE
  $ip link set $BRIDGE up
  $ip route add default via 10.77.0.254 dev eth0  # leads nowhere: a kubelet wants one
  local net=/proc/sys/net
  inside sh -c "echo 1 >$net/ipv4/ip_forward
                echo 1 >$net/ipv4/conf/all/route_localnet
                echo 1 >$net/bridge/bridge-nf-call-iptables" 2>/dev/null  # the last: where there is one
}

up() {
  mkdir -p "$LOGS" "$STATE/etcd" "$STATE/names"
  # etcd syncs its journal to disk at each write: without a disk it is quick, and nothing must last.
  mountpoint -q "$STATE/etcd" || mount -t tmpfs -o mode=700,size=2g etcd "$STATE/etcd"
  ( certificates ) && network || exit 1
  local etcd=http://127.0.0.1:2379 peer=http://127.0.0.1:2380
  start etcd "$BIN/etcd" --data-dir "$STATE/etcd" --log-level warn \
    --listen-client-urls $etcd --advertise-client-urls $etcd --listen-peer-urls $peer \
    --initial-advertise-peer-urls $peer --initial-cluster default=$peer
  # Of this machine, not of the namespace: what listens there is not to be reached from here.
  IN="" start fwd socat "TCP-LISTEN:$PORT,bind=127.0.0.1,reuseaddr,fork,backlog=256" \
    EXEC:"nsenter --net=/run/netns/$CLUSTER socat STDIO TCP\:127.0.0.1\:6443"
  start apiserver "$BIN/kube-apiserver" --etcd-servers=$etcd --bind-address=0.0.0.0 \
    --secure-port=6443 --advertise-address=$NODE_IP --service-cluster-ip-range=$SERVICES \
    --allow-privileged=true --authorization-mode=Node,RBAC --token-auth-file="$PKI/tokens.csv" \
    --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" \
    --tls-private-key-file="$PKI/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --default-not-ready-toleration-seconds="$EVICT" \
    --default-unreachable-toleration-seconds="$EVICT" \
    --kubelet-preferred-address-types=InternalIP --profiling=false --v=1
  until_ 60 "the API server" ready || { tail -n 5 "$LOGS/apiserver.log" "$LOGS/fwd.log" >&2; exit 1; }
  start controllers "$BIN/kube-controller-manager" --leader-elect=false --bind-address=127.0.0.1 \
    --kubeconfig="$PKI/kube-controller-manager.kubeconfig" --root-ca-file="$PKI/ca.crt" \
    --service-account-private-key-file="$PKI/sa.key" --use-service-account-credentials=true \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
    --node-monitor-grace-period="$GRACE" --node-monitor-period=2s --v=1
  start scheduler "$BIN/kube-scheduler" --kubeconfig="$PKI/kube-scheduler.kubeconfig" \
    --leader-elect=false --bind-address=127.0.0.1 --v=2
  start dns dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root \
    --listen-address=$DNS_IP --bind-interfaces --no-hosts --no-resolv --local=/#/ \
    --hostsdir="$STATE/names" --log-facility=-
  local default=/api/v1/namespaces/default  # with these two pods can be made
  until_ 60 "the default service account" there $default/serviceaccounts/default &&
    until_ 60 "the CA's ConfigMap" there $default/configmaps/kube-root-ca.crt || exit 1
  echo "KUBECONFIG=$STATE/kubeconfig"
}

nodes() {
  [ -f "$STATE/images.json" ] || echo '{"*": {}}' >"$STATE/images.json"
  start prockubelet env PYTHONPATH="$HERE:$HERE/../.." PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    python3 -m prockubelet --server $SERVER --token "$(cat "$PKI/admin.token")" \
    --ca "$PKI/ca.crt" --cert "$PKI/apiserver.crt" --key "$PKI/apiserver.key" \
    --root "$STATE/nodes" --images "$STATE/images.json" --cgroup "edl-$CLUSTER" \
    --names "$STATE/names" \
    --netns-prefix "${CLUSTER}_" --bridge $BRIDGE --cidr $PODS --dns $DNS_IP --node-ip $NODE_IP \
    --version "v$KUBERNETES" "$@"
  # kube-proxy asks for its own Node first, waits 30 s for it, and ends when that is deleted.
  until_ 30 "the first node" there /api/v1/nodes/pk-0 || exit 1
  start proxy bash -c 'trap "kill \$p; exit" TERM; while :; do "$0" "$@" & p=$!; wait $p; sleep 1; done' \
    "$BIN/kube-proxy" --kubeconfig="$PKI/kube-proxy.kubeconfig" --proxy-mode=iptables \
    --cluster-cidr=$PODS --hostname-override=pk-0 --bind-address=$NODE_IP \
    --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
    --conntrack-tcp-timeout-close-wait=0 --healthz-bind-address=127.0.0.1:10256 \
    --metrics-bind-address=127.0.0.1:10249 --iptables-sync-period=5s \
    --iptables-min-sync-period=200ms --v=1
  until_ 60 "kube-proxy" services || exit 1
}

down() {  # also what a killed run left: the namespaces say which processes are this cluster's
  [ -f "$STATE/containerd.pid" ] && "$HERE/realnode.sh" down
  for name in prockubelet dns proxy scheduler controllers fwd apiserver etcd; do stop $name; done
  for netns in $(ip netns list | awk '{print $1}' | grep -E "^$CLUSTER(_|\$)"); do
    for pid in $(ip netns pids "$netns"); do kill -KILL "$pid" 2>/dev/null; done
    ip netns del "$netns"
  done
  for mount in $(awk -v state="$STATE/" 'index($2, state) == 1 {print $2}' /proc/mounts | sort -r); do
    umount -l "$mount"
  done
  find /sys/fs/cgroup/*/"edl-$CLUSTER" -depth -type d -exec rmdir {} + 2>/dev/null
  rm -rf --one-file-system "$STATE"
}

case ${1:-} in
  up | nodes | down | stop) "$@" ;;
  *) sed -n 2p "$0" >&2; exit 2 ;;
esac
