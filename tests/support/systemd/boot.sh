#!/bin/bash
# A systemd of its own as the first process of new namespaces, on this machine's files: boot.sh DIRECTORY
#
# What it could change of the machine is covered: /etc, /sbin, /usr/local and the units are copies that vanish, /run,
# /var/log and its own state are empty, /proc/sys cannot be written, and it has no network, no console and no kernel
# log. DIRECTORY/etc, sbin and local lie over /etc, /sbin and /usr/local. It lives until it is killed.
set -euo pipefail

# In the first run: a control group (cgroups(7), version 2) that the new namespace has for its root.
outside() {
    local groups=$1/groups group
    mkdir "$groups"
    mount -t cgroup2 cgroup2 "$groups"
    group=$groups/fusestripe-test-$$
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    # Whoever ends takes along what it has started: a test that is killed leaves nothing that runs.
    setpriv --pdeathsig KILL unshare --cgroup --pid --mount --uts --ipc --net --fork --kill-child --mount-proc \
        "${BASH_SOURCE[0]}" "$1" inside || true
    echo $$ >"$groups/cgroup.procs"
    find "$group" -depth -type d -exec rmdir {} +
    umount "$groups"
}

# In the second: the files, then systemd.
inside() {
    local covered=$1/covered name target
    ip link set lo up
    mount -t tmpfs tmpfs /run
    mkdir "$covered"
    mount -t tmpfs tmpfs "$covered"
    for name in etc sbin local; do
        target=$(readlink -f "/$name")
        [[ $name != local ]] || target=/usr/local
        mkdir -p "$1/$name" "$covered/$name" "$covered/$name.work"
        cp -r "$1/$name/." "$covered/$name/"
        mount -t overlay -o "lowerdir=$target,upperdir=$covered/$name,workdir=$covered/$name.work" overlay "$target"
    done
    rm -rf /etc/systemd/system
    mkdir -p /etc/systemd/system
    cp -r "$1/units/." /etc/systemd/system/
    units "$covered"
    for name in /var/log /var/lib/systemd; do
        mount -t tmpfs tmpfs "$name"
    done
    for name in /dev/console /dev/kmsg; do
        [[ ! -e $name ]] || mount --bind /dev/null "$name"
    done
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    container=fusestripe-test exec /lib/systemd/systemd --system --unit=ready.target --show-status=no \
        --log-target=console
}

# Only the targets that order others, and the journal: nothing of this machine is set up, cleaned or started.
units() {
    local kept=$1/units name
    mkdir "$kept"
    for name in basic sysinit shutdown umount network network-online remote-fs remote-fs-pre local-fs \
        local-fs-pre sockets slices paths timers swap final multi-user nss-lookup time-sync; do
        grep -v '^Wants=' "/lib/systemd/system/$name.target" >"$kept/$name.target"
    done
    cp -L /lib/systemd/system/systemd-journald{.service,.socket,-dev-log.socket} "$kept/"
    printf '[Unit]\nWants=basic.target systemd-journald.service\nAfter=basic.target systemd-journald.service\n' \
        >"$kept/ready.target"
    mount --bind "$kept" /usr/lib/systemd/system
    for name in /usr/lib/systemd/system-{generators,environment-generators,shutdown}; do
        [[ ! -d $name ]] || mount -t tmpfs tmpfs "$name"
    done
}

case ${2-} in
inside) inside "$1" ;;
outside) outside "$1" ;;
*) exec unshare --mount --propagation private "${BASH_SOURCE[0]}" "$1" outside ;;
esac
