#!/bin/bash
# make.sh: builds $KIT, what a test's cluster runs (common.sh, versions), out of the Go modules of
# Kubernetes, etcd and Kueue: Go 1.26, zstd, PyYAML, 2 GB of modules and 8 GB of build cache; some 10
# minutes on two idle cores. $PYTHON: the Python that has PyYAML.
set -eu
. "$(dirname "$0")/../common.sh"
FROM=$(cd "$(dirname "$0")" && pwd)
KIT=$CACHE/${KIT##*/}
WORK=$CACHE/build
for tool in go zstd; do
  command -v $tool >/dev/null || { say "make.sh: no $tool here: install it (Go 1.26 or newer)"; exit 1; }
done
mkdir -p "$WORK"/{kube,etcd,kueue,out}
export CGO_ENABLED=0 GOFLAGS=-mod=mod

module() {  # module FOLDER MODULE VERSION: a module that requires it
  cd "$WORK/$1"
  printf 'module kit\n\ngo 1.26.0\n\nrequire %s v%s\n' "$2" "$3" >go.mod
}

program() {  # program FOLDER MODULE VERSION PACKAGE
  module "$1" "$2" "$3"
  printf '//go:build tools\n\npackage kit\n\nimport _ "%s"\n' "$4" >tools.go
  go mod tidy
  go build -trimpath -ldflags "-s -w" -o "$WORK/out/$1" "$4"
}

kubernetes() {  # one program, called by the name of a part
  module kube k8s.io/kubernetes "$KUBERNETES"
  cp "$FROM/main.go" .
  local minor=${KUBERNETES#1.} flags="-s -w" source at part
  source=$(go mod download -json "k8s.io/kubernetes@v$KUBERNETES" |
    sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  # Its parts are folders of its repository, and modules v0.MINOR.PATCH of their own.
  sed -n 's#^\s*\(k8s.io/[a-z0-9-]*\) => ./staging.*#replace \1 => \1 v0.'"$minor"'#p' \
    "$source/go.mod" >>go.mod
  for at in k8s.io/client-go/pkg/version k8s.io/component-base/version; do
    flags="$flags -X $at.gitVersion=v$KUBERNETES -X $at.gitMajor=1 -X $at.gitMinor=${minor%%.*}"
    flags="$flags -X $at.gitTreeState=archive"
  done
  go mod tidy
  go build -trimpath -ldflags "$flags" -o "$WORK/out/kube" .
  for part in kube-{apiserver,controller-manager,proxy,scheduler} kubelet kubectl; do
    ln -sf kube "$WORK/out/$part"
  done
}

kubernetes
program etcd go.etcd.io/etcd/server/v3 "$ETCD" go.etcd.io/etcd/server/v3
program kueue sigs.k8s.io/kueue "$KUEUE" sigs.k8s.io/kueue/cmd/kueue
rm -rf "$WORK/config"
cp -r "$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config" "$WORK/"
"$WORK/out/kubectl" kustomize "$WORK/config/default" |
  "${PYTHON:-python3}" "$FROM/kueue_manifest.py" >"$WORK/out/kueue.yaml"
tar --owner=0 --group=0 -C "$WORK/out" -cf - . | zstd -q --long=27 -19 -T0 -f -o "$KIT"
ls -l "$KIT"
