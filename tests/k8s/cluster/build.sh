#!/bin/bash
# build.sh: what a cluster runs, on a Debian machine, as root; does nothing where all is there.
# Packages by apt-get, and the kit's programs into $BIN: etcd, kubectl, the parts of Kubernetes and Kueue.
# REAL=1: also what realnode.sh needs, and buildah, which makes images without a daemon.
set -eu
. "$(dirname "$0")/common.sh"
RUN="iproute2 iptables conntrack util-linux openssl curl zstd procps dnsmasq-base socat"
if [ "${REAL:-0}" = 1 ]; then
  RUN="$RUN containerd runc containernetworking-plugins debootstrap buildah"
fi

packages() {
  local missing="" package
  for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"; done
  [ -n "$missing" ] || return 0
  say "installing$missing"
  mkdir -p "$CACHE"
  ( apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
  ) >"$CACHE/apt.log" 2>&1 || { tail -n 5 "$CACHE/apt.log" >&2; return 1; }
}

unpack() {  # whole or not at all, also where two runs begin at once
  local part=$BIN.$$
  mkdir -p "$part"
  zstd -dqc --long=27 "$KIT" | tar -C "$part" --no-same-owner -xf -
  mv -T "$part" "$BIN" 2>/dev/null || rm -rf "$part"
}

packages $RUN
[ -e "$BIN/kube-apiserver" ] || [ -f "$KIT" ] || { say "no $KIT: make kubernetes"; exit 1; }
[ -e "$BIN/kube-apiserver" ] || unpack
