#!/bin/bash
# build.sh: what a cluster runs, on a Debian 12 machine, as root; does nothing where all is there.
# Packages by apt-get; kube-apiserver, kube-controller-manager, kube-scheduler and kube-proxy of
# Kubernetes 1.20.2 out of $KUBERNETES_BINARIES (a .tar.zst of them) or, without it, built from
# Debian's source package (about 5 minutes on two cores), into $CACHE/bin.
# REAL=1: also kubelet, what else realnode.sh needs, and buildah, which makes images without a daemon.
set -eu
. "$(dirname "$0")/common.sh"
VERSION=1.20.5+really1.20.2-1.1+deb12u1
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kube-proxy"
RUN="etcd-server iproute2 iptables conntrack util-linux openssl curl zstd procps"
BUILD="golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev dpkg-dev"
command -v kubectl >/dev/null || RUN="$RUN kubernetes-client"
if [ "${REAL:-0}" = 1 ]; then
  PROGRAMS="$PROGRAMS kubelet"
  RUN="$RUN containerd runc containernetworking-plugins debootstrap gcc libc6-dev buildah"
fi
mkdir -p "$BIN" "$CACHE/logs"

complete() {
  local program
  for program in $PROGRAMS; do "$BIN/$program" --version 2>/dev/null | grep -q v1.20.2 || return 1; done
}

packages() {
  local missing="" package
  for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"; done
  [ -n "$missing" ] || return 0
  say "installing$missing"
  ( apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
  ) >"$CACHE/logs/apt.log" 2>&1 || { tail -n 5 "$CACHE/logs/apt.log" >&2; return 1; }
}

unpack() {
  say "unpacking $KUBERNETES_BINARIES"
  zstd -dqc --long=27 "$KUBERNETES_BINARIES" | tar -C "$BIN" --no-same-owner -xf -
}

source_() {  # with apt lists of its own: this machine's sources stay as they are
  [ -f "$CACHE/src/done" ] && return
  say "fetching the source"
  rm -rf "$CACHE/src"
  mkdir -p "$CACHE/src" "$CACHE/apt/lists/partial" "$CACHE/gopath/src/k8s.io"
  cd "$CACHE/src"
  local mirror key=/usr/share/keyrings/debian-archive-keyring.gpg
  mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)
  echo "deb-src [signed-by=$key] $mirror bookworm main" >"$CACHE/apt/src.list"
  local options="-qq -o Dir::Etc::SourceList=$CACHE/apt/src.list -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists=$CACHE/apt/lists -o APT::Sandbox::User=root"
  apt-get $options update
  apt-get $options source --download-only kubernetes=$VERSION >"$CACHE/logs/source.log" 2>&1
  dpkg-source -x "kubernetes_$VERSION.dsc" kubernetes >>"$CACHE/logs/source.log" 2>&1
  # reflect2 1.0.1, as vendored, breaks JSON under Go >= 1.18 (nil dereference in the API server):
  # take Debian's 1.0.2.
  rm -rf kubernetes/vendor/github.com/modern-go/reflect2
  cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 kubernetes/vendor/github.com/modern-go/
  ln -sfn "$CACHE/src/kubernetes" "$CACHE/gopath/src/k8s.io/kubernetes"
  touch done
}

go_() {
  cd "$CACHE/gopath/src/k8s.io/kubernetes"
  env PATH="/usr/lib/go-1.19/bin:$PATH" GOPATH="$CACHE/gopath" GOCACHE="$CACHE/gocache" GO111MODULE=off \
    GOFLAGS= GOPROXY=off CGO_ENABLED=0 GOGC=400 "$@"
}

openapi() (  # the one generated file that upstream does not ship
  cd "$CACHE/gopath/src/k8s.io/kubernetes"
  [ -f pkg/generated/openapi/zz_generated.openapi.go ] && return
  say "generating openapi"
  go_ go build -o "$CACHE/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
  folders=$(grep -rl --include='*.go' '^// +k8s:openapi-gen=' pkg/apis staging/src/k8s.io |
    xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^staging/src/#vendor/#' |
    grep -vE '^vendor/k8s.io/(code-generator|sample-apiserver)/' | sed 's#^#k8s.io/kubernetes/#' |
    paste -sd,)
  go_ "$CACHE/openapi-gen" --logtostderr -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi \
    -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
    -r "$CACHE/logs/violations"
)

compile() {  # without the clouds' SDKs and dockershim: half the size, a quarter less to compile
  say "compiling $PROGRAMS: minutes"
  local flags="-s -w" targets="" folder at
  for folder in client-go/pkg component-base; do
    at=k8s.io/kubernetes/vendor/k8s.io/$folder/version
    flags="$flags -X $at.gitVersion=v1.20.2 -X $at.gitMajor=1 -X $at.gitMinor=20"
    flags="$flags -X $at.gitTreeState=archive"
  done
  for program in $PROGRAMS; do targets="$targets k8s.io/kubernetes/cmd/$program"; done
  go_ go build -tags providerless,dockerless -trimpath -ldflags "$flags" -o "$BIN/" $targets
  rm -rf "$CACHE/gocache"
}

packages $RUN
complete || [ -z "${KUBERNETES_BINARIES:-}" ] || unpack
complete || { packages $BUILD; source_; openapi; compile; }
complete || { say "no complete set of binaries in $BIN: remove that folder and try again"; exit 1; }
