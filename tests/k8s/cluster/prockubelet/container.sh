# Process 1 of a container, until it becomes the container's command: "$@".
# Its arguments: PK_GROUPS (memory groups to join), PK_HOST, PK_DIR (a folder on a file system that
# may hold an overlay's upper layer), PK_POD (hosts, resolv.conf), PK_CWD, PK_NICE, and in
# $PK_DIR/mounts lines of SOURCE|TARGET|READONLY.
set -e
path=$PATH  # the image's
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for group in $PK_GROUPS; do echo $$ >"$group/cgroup.procs"; done
hostname "$PK_HOST"
root=$PK_DIR/root
mkdir -p "$root"
mount -t overlay pod -o "lowerdir=/,upperdir=$PK_DIR/upper,workdir=$PK_DIR/work" "$root"
mkdir -p "$root/proc" "$root/dev" "$root/sys" "$root/tmp" "$root/etc" "$root/run"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/run"
for file in hosts resolv.conf; do
  [ -e "$PK_POD/$file" ] || continue
  rm -f "$root/etc/$file"  # it may be a link to somewhere that is not here
  cp "$PK_POD/$file" "$root/etc/$file"
done
# /var/run is a link to /run: made and resolved from inside, where links lead where they will lead
folder() { chroot "$root" /bin/sh -c 'mkdir -p "$0" && cd "$0" && pwd -P' "$1"; }
while IFS='|' read -r source target readonly; do
  [ -n "$source" ] || continue
  if [ -d "$source" ]; then
    target=$root$(folder "$target")
  else
    target=$root$(folder "$(dirname "$target")")/$(basename "$target")
    touch "$target"
  fi
  mount --bind "$source" "$target"
  [ "$readonly" != True ] || mount -o remount,bind,ro "$target"
done <"$PK_DIR/mounts"
folder "$PK_CWD" >/dev/null
cwd=$PK_CWD nice=$PK_NICE
unset PK_GROUPS PK_HOST PK_DIR PK_POD PK_CWD PK_NICE
exec nice -n "$nice" chroot "$root" /usr/bin/env PATH="$path" /bin/sh -c 'cd "$0" && unset PWD OLDPWD && exec "$@"' "$cwd" "$@"
