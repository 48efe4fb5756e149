# shellcheck shell=bash
# What prolog.sh, epilog.sh and task_prolog.sh share. Each of them says in its head what it is for.
#
# Root acts on nothing that the job's user may write: what he says is read, and done, as he. Root's own are
# FUSESTRIPE_STATE and FUSESTRIPE_MOUNTS with the directories of the jobs in them:
#
#   STATE/ID/uid       whose job it is              MOUNTS/ID     the mountpoint: the user's, mode 0700
#   STATE/ID/message   what root has to tell        CACHES/UID    the cache: the user's, mode 0700
#   STATE/ID/ended     `job end` has done its work
#   STATE/ID/run       the user's, mode 0700: the daemon's socket and log, and what `fusestripe job` notes
set -uo pipefail
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022
cd / || exit 0

FUSESTRIPE=/usr/local/bin/fusestripe
FUSESTRIPE_CACHES=
FUSESTRIPE_MOUNTS=/mnt/fusestripe
FUSESTRIPE_STATE=/var/spool/fusestripe
FUSESTRIPE_ENVIRONMENT=()
FUSESTRIPE_STRICT=0
# shellcheck disable=SC2034  # prolog.sh takes it
FUSESTRIPE_SECONDS=60
# shellcheck disable=SC2034
FUSESTRIPE_MAX_WAIT=60
FUSESTRIPE_END_SECONDS=60
FUSESTRIPE_SWEEP_SECONDS=600

# The directory of the job that this script is run for, once it has one.
state=

# note LINE: to the system's log.
note() {
    logger -t fusestripe -- "job ${SLURM_JOB_ID-}: $1" 2>/dev/null
}

# tell LINE: there, and to the log of the job.
tell() {
    note "$1"
    if [[ -d $state ]]; then
        printf 'fusestripe: %s\n' "$1" >>"$state/message"
    fi
}

# give_up LINE: end the script, without draining the node unless that is wanted. slurmd logs what a Prolog has
# written that fails.
give_up() {
    tell "$1"
    printf 'fusestripe: %s\n' "$1"
    [[ $FUSESTRIPE_STRICT != 1 ]] || exit 1
    exit 0
}

# What the administrator says, in a file that nobody else may write.
read_conf() {
    local conf=${FUSESTRIPE_SLURM_CONF:-/etc/fusestripe/slurm.conf}
    if [[ -e $conf ]]; then
        is_roots "$conf" || give_up "$conf is not root's alone: chown root and chmod go-w"
        # shellcheck disable=SC1090
        source "$conf"
    fi
}

# is_roots PATH: nobody but root may write it.
is_roots() {
    local found
    found=$(stat -c '%u %a' -- "$1") || return 1
    [[ ${found% *} == 0 ]] && ((!(8#${found#* } & 8#022)))
}

# roots_directory PATH: make it unless it is there; all may pass, root alone may write.
roots_directory() {
    [[ -d $1 ]] || mkdir -p -- "$1"
    [[ -d $1 && ! -L $1 ]] && is_roots "$1"
}

# users_directory PATH: make it in one of root's, for the job's user alone.
users_directory() {
    if mkdir -m 0700 -- "$1" 2>/dev/null; then
        chown -- "$uid:$gid" "$1"
    else
        is_mounted "$1" || [[ -d $1 && ! -L $1 && $(stat -c %u -- "$1") == "$uid" ]]
    fi
}

# is_mounted PATH: without touching it, for its daemon may hang.
is_mounted() {
    awk -v path="$1" '$5 == path { found = 1 } END { exit !found }' /proc/self/mountinfo
}

# of_user UID: set uid, gid, user and home. False where nobody has that number.
of_user() {
    local entry
    [[ $1 =~ ^[0-9]+$ ]] || return 1
    entry=$(timeout 20 getent passwd "$1") || return 1
    IFS=: read -r user _ uid gid _ home _ <<<"$entry"
    [[ $uid == "$1" && $gid =~ ^[0-9]+$ ]]
}

# as_user SECONDS RUN COMMAND...: as the user of of_user, with nothing of this environment, RUN as the runtime
# directory; ended after SECONDS. All of it stays in the process group that slurmd ends a script by, and ends
# with this script.
as_user() {
    local seconds=$1 run=$2 environment name
    shift 2
    environment=(
        "HOME=$home" "USER=$user" "LOGNAME=$user" "PATH=$PATH" LANG=C.UTF-8
        PYTHONNOUSERSITE=1 # what lies in his HOME is not run outside of his job's limits
        "FUSESTRIPE_RUNTIME_DIR=$run"
        ${FUSESTRIPE_CACHES:+"FUSESTRIPE_CACHE_DIR=$FUSESTRIPE_CACHES/$uid"}
    )
    for name in SLURM_{CONF,CLUSTER_NAME,JOB_ID,JOB_NODELIST,JOB_NUM_NODES,JOB_GPUS} SLURMD_NODENAME; do
        [[ -z ${!name-} ]] || environment+=("$name=${!name}")
    done
    setpriv --pdeathsig TERM -- timeout --foreground --kill-after=10 "$seconds" \
        setpriv --reuid "$uid" --regid "$gid" --init-groups --inh-caps=-all -- \
        env -i "${environment[@]}" ${FUSESTRIPE_ENVIRONMENT[@]+"${FUSESTRIPE_ENVIRONMENT[@]}"} "$@" </dev/null
}

# into LOG COMMAND... (for as_user): its output to that file, opened as the user.
# shellcheck disable=SC2016
into=(sh -c 'umask 077; log=$1; shift; rm -f "$log"; exec "$@" >"$log" 2>&1' sh)

# said LOG: the beginning of what the user of of_user has in that file, fit for a log of the system.
said() {
    as_user 10 / head -c 500 -- "$1" 2>/dev/null | tr -c '[:print:]' ' '
}

# tidy ID: unmount, end and unpin all of the job ID of the user of of_user; what it has said stays there.
tidy() {
    local id=$1 at=$FUSESTRIPE_STATE/$1 run=$FUSESTRIPE_STATE/$1/run path=$FUSESTRIPE_MOUNTS/$1
    if [[ -d $run && ! -e $at/ended ]]; then
        if as_user "$FUSESTRIPE_END_SECONDS" "$run" "${into[@]}" "$run/epilog.log" \
            "$FUSESTRIPE" job end --id "$id" --mountpoint "$path"; then
            touch -- "$at/ended"
        else
            note "job end: $(said "$run/epilog.log")"
        fi
    fi
    if is_mounted "$path"; then
        # What is above the path is root's, so that it leads nowhere else.
        timeout 10 umount --internal-only --no-canonicalize --lazy -- "$path"
    fi
    if [[ -d $path ]] && ! rmdir -- "$path" 2>/dev/null; then
        as_user 20 "$run" find "$path" -mindepth 1 -xdev -delete
        rmdir -- "$path"
    fi
}

# end_job ID: tidy, and forget it. False where something is left, for the next sweep.
end_job() {
    local id=$1 at=$FUSESTRIPE_STATE/$1
    [[ -d $at ]] || return 0
    if of_user "$(head -c 20 -- "$at/uid" 2>/dev/null)"; then
        tidy "$id"
        if [[ -d $at/run ]]; then
            as_user 20 "$at/run" find "$at/run" -mindepth 1 -xdev -delete
        fi
    fi
    [[ ! -d $at/run ]] || rmdir -- "$at/run" || return 1
    [[ ! -d $FUSESTRIPE_MOUNTS/$id ]] || return 1
    rm -f -- "$at/uid" "$at/message" "$at/ended"
    rmdir -- "$at"
}

# sweep: end what jobs that are gone left on this node: those whose Epilog was killed, or never ran.
sweep() {
    local stamp=$FUSESTRIPE_STATE/swept left=() at here
    for at in "$FUSESTRIPE_STATE"/[0-9]*/; do
        at=$(basename -- "$at")
        [[ ! $at =~ ^[0-9]+$ || $at == "$SLURM_JOB_ID" ]] || left+=("$at")
    done
    ((${#left[@]})) || return 0
    [[ -z $(find "$stamp" -newermt "-$FUSESTRIPE_SWEEP_SECONDS seconds" 2>/dev/null) ]] || return 0
    touch -- "$stamp"
    here=$(timeout 10 squeue --noheader --nodelist "$SLURMD_NODENAME" --format %A) || return 0
    for at in "${left[@]}"; do
        grep -qx -- "$at" <<<"$here" || end_job "$at"
    done
}
