# Sourced by the other scripts: where things are, and processes that are started once and stopped by
# their recorded pid.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CLUSTER=${CLUSTER:-k8s0}                                # name, and that of its network namespace
PORT=${PORT:-6443}                                      # of the API on this machine's loopback
STATE=${STATE:-/var/tmp/edl-clusters/$CLUSTER}          # of this cluster; removed by `cluster.sh down`
. "$HERE/versions"
CACHE=${KUBERNETES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/edl/kubernetes}  # programs, images; shared, kept
KIT=$CACHE/kube-$KUBERNETES-linux-amd64.tar.zst         # as kit/make.sh makes it
[ -f "$KIT" ] || KIT=${KUBERNETES_KITS:-$HERE/../../../../shared/cluster}/${KIT##*/}
BIN=$CACHE/$KUBERNETES LOGS=$STATE/logs PKI=$STATE/pki
SERVER=https://127.0.0.1:6443                           # inside the namespace
NODE_IP=10.77.0.1 SERVICES=10.96.0.0/16 API_IP=10.96.0.1 DNS_IP=10.96.0.10 PODS=10.244.0.0/16
BRIDGE=pods0

say() { printf '%s\n' "$*" >&2; }
inside() { nsenter --net="/run/netns/$CLUSTER" "$@"; }
# A pid alone may be another process by now; and one that ended may wait long for its new parent.
born() { awk '$3 != "Z" {print $22}' "/proc/$1/stat" 2>/dev/null; }

alive() {  # alive NAME
  local pid born
  read -r pid born 2>/dev/null <"$STATE/$1.pid" && [ "$(born "$pid")" = "$born" ]
}

start() {  # start NAME COMMAND...: in a session of its own and, but for IN="", in the namespace
  local name=$1 in=${IN-nsenter --net=/run/netns/$CLUSTER}; shift
  alive "$name" && return
  ( cd "$STATE" || exit
    setsid $in "$@" >>"$LOGS/$name.log" 2>&1 </dev/null &
    echo "$! $(born $!)" >"$STATE/$name.pid" )
}

stop() {  # stop NAME [SIGNAL]
  local pid rest
  if alive "$1"; then
    read -r pid rest <"$STATE/$1.pid"
    kill -"${2:-TERM}" "$pid" 2>/dev/null
    for _ in $(seq 60); do alive "$1" || break; sleep .1; done
    alive "$1" && kill -KILL "$pid" 2>/dev/null
  fi
  rm -f "$STATE/$1.pid"
}

until_() {  # until_ SECONDS WHAT COMMAND...: asks every 0.1 s
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || { say "$what: not in time; see $LOGS"; return 1; }
    sleep .1
  done
}
