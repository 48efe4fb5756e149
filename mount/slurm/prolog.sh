#!/bin/bash
# Prolog of Slurm: mounts and prefetches what a job asks for, on each of its nodes, as the job's user.
#
# For the administrator
# ---------------------
# Put the four files of this directory into one directory of root's on every node, and in slurm.conf:
#
#   Prolog=/etc/slurm/fusestripe/prolog.sh           (or a link to it in a prolog.d/* that is there already)
#   Epilog=/etc/slurm/fusestripe/epilog.sh
#   TaskProlog=/etc/slurm/fusestripe/task_prolog.sh  (there is one: call it from yours, hand on its output)
#   PrologFlags=Alloc                                (on all nodes at once, not at the first step on each)
#   PrologEpilogTimeout=300                          (more than all SECONDS below together with 60; or unset)
#   BatchStartTimeout=300                            (as much: its default of 10 s is short for such a Prolog)
#
# /etc/fusestripe/slurm.conf is bash: root's alone to write, and read by all, so no place for secrets. Slurm's
# variables are there (SLURM_JOB_UID, SLURM_JOB_ID, SLURM_JOB_PARTITION, SLURMD_NODENAME).
#
#   FUSESTRIPE_CACHES=/nvme/fusestripe      needed: a directory on local NVMe, for a cache of each user's own
#   FUSESTRIPE=/usr/local/bin/fusestripe    the program, where every user may run it
#   FUSESTRIPE_MOUNTS=/mnt/fusestripe       a job's mountpoint is the directory of its id in here
#   FUSESTRIPE_STATE=/var/spool/fusestripe  what is noted of a job; on a local disk
#   FUSESTRIPE_ENVIRONMENT=(FUSESTRIPE_CACHE_SIZE=2TiB HADOOP_CONF_DIR=/etc/hadoop/conf)
#                                           more environment of the daemons: settings, where the stores are
#   FUSESTRIPE_SECONDS=60                   the mount has to be there within that time
#   FUSESTRIPE_MAX_WAIT=60                  a job that asks for it (wait) waits no longer for its prefetch
#   FUSESTRIPE_END_SECONDS=60               the mount has to go within that time
#   FUSESTRIPE_SWEEP_SECONDS=600            where jobs that are gone left something, squeue is asked so often
#   FUSESTRIPE_STRICT=0                     1: see below
#
# What goes wrong keeps no job from running and drains no node: this script exits with 0, and a line in the
# job's output says what it was (task_prolog.sh; the system's log has it too). FUSESTRIPE_MOUNT is not set
# then, so that "${FUSESTRIPE_MOUNT:?}" ends a job script that cannot go on. With FUSESTRIPE_STRICT=1 it exits
# with 1: Slurm drains the node and requeues the job, held (with nohold_on_prolog_fail in SchedulerParameters:
# not held). Mind that a user's mistake in a request drains nodes then, as many as he likes.
#
# All of it happens as the job's user (setpriv), with a new environment and his HOME. So his credentials are
# those in his files (~/.aws, a Kerberos ticket in /tmp), the node's (instance role), or what
# FUSESTRIPE_ENVIRONMENT names; what he exports in his job is not seen here. Daemons live in slurmd's cgroup,
# not in the job's: their memory (FUSESTRIPE_MEMORY, 1GiB) does not count as the job's, nor does what a
# credential_process in ~/.aws/config does. They go on where slurmd is restarted, if its systemd unit says
# KillMode=process, as Slurm's own does, and end in the Epilog. They are told SLURM_JOB_ID,
# SLURM_JOB_NODELIST, SLURM_JOB_NUM_NODES, SLURM_JOB_GPUS and SLURMD_NODENAME.
#
# For the user
# ------------
#   sbatch --comment='fusestripe:source=s3://bucket/ckpt,prefetch=step-9000' train.sh
#
#   state = torch.load(os.environ["FUSESTRIPE_MOUNT"] + "/step-9000/model.pt", mmap=True)
#
# A request is one word in the comment, without spaces: "fusestripe:", then by commas any of
#
#   source=URL        what to mount; or a TOML file with routes, relative to the job's working directory
#   prefetch=PATH     below it, as often as there are paths; the job starts meanwhile
#   wait=5m           the job starts when they are there, or after this time
#   latest            of them the newest complete checkpoint alone; without prefetch, of the source
#   rank_local        of them what the ranks on this node read
#   pin               keep them from eviction until the job ends
#   mountpoint=DIR    another place: a directory of the user's own, made if missing; %j is the job's id
#   endpoint=, profile=, stripe_count=, ...    any setting by its name in `mount -o`
#
# Or fusestripe.toml in the job's working directory: a file as for `fusestripe mount`, with a table [job].
#
#   [[route]]
#   source = "s3://bucket/ckpt"
#   [job]
#   prefetch = ["step-9000"]
#   wait = "5m"
#   pin = true
#
# What the comment says stands over the file. `fusestripe job check [--comment ...]`, run in that directory,
# shows what would be asked for, or what is wrong with it. In the job there are
#
#   FUSESTRIPE_MOUNT         where the tree is: this job's own on this node; other users cannot look into it
#   FUSESTRIPE_RUNTIME_DIR   so that `fusestripe status` and `prefetch` find it; prefetch.log is there
#   FUSESTRIPE_CACHE_DIR     the user's cache on this node
# shellcheck source=SCRIPTDIR/common.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/common.sh"

# field NAME: what the controller has shown in a line of its own. A user's words: for use as that user alone.
field() {
    local line
    line=$(sed -n "s/^   $1=//p" <<<"$shown" | head -n 1)
    [[ $line == "(null)" ]] || printf '%s' "$line"
}

# Slurm before 22.05 tells less: then the controller is asked, and only then, for many Prologs ask at once.
if [[ ${SLURM_JOB_ID-} =~ ^[0-9]+$ && -z ${SLURM_JOB_WORK_DIR-} ]]; then
    shown=$(timeout 20 scontrol show job "$SLURM_JOB_ID")
    SLURM_JOB_WORK_DIR=$(field WorkDir)
    SLURM_JOB_COMMENT=$(field Comment)
    SLURM_JOB_NODELIST=$(field NodeList)
fi

[[ ${SLURM_JOB_ID-} =~ ^[0-9]+$ ]] || exit 0
read_conf
: "${SLURM_JOB_NODELIST:=${SLURM_NODELIST-}}" "${SLURMD_NODENAME:=$(hostname -s)}"
comment=${SLURM_JOB_COMMENT-}
directory=${SLURM_JOB_WORK_DIR:-/}

of_user "${SLURM_JOB_UID-}" || give_up "there is no user with the number ${SLURM_JOB_UID-}"
gid=${SLURM_JOB_GID:-$gid}
if [[ ${comment,,} != *fusestripe:* ]]; then
    as_user 10 / test -f "$directory/fusestripe.toml" || exit 0
fi

roots_directory "$FUSESTRIPE_STATE" || give_up "$FUSESTRIPE_STATE is not root's alone: chown root, chmod 755"
state=$FUSESTRIPE_STATE/$SLURM_JOB_ID
if [[ -d $state && $(head -c 20 -- "$state/uid") != "$uid" ]]; then
    end_job "$SLURM_JOB_ID"
    of_user "$SLURM_JOB_UID"
fi
mkdir -p -- "$state" || give_up "$state cannot be made"
rm -f -- "$state/message" "$state/ended"
printf '%s\n' "$uid" >"$state/uid" || give_up "$state/uid cannot be written"
users_directory "$state/run" || give_up "$state/run cannot be made"
[[ -n $FUSESTRIPE_CACHES ]] || give_up "FUSESTRIPE_CACHES is not set: the administrator names a local disk"
for path in "$FUSESTRIPE_MOUNTS" "$FUSESTRIPE_CACHES"; do
    roots_directory "$path" || give_up "$path is not root's alone: chown root, chmod 755"
done
path=$FUSESTRIPE_MOUNTS/$SLURM_JOB_ID
users_directory "$path" || give_up "$path cannot be made"
users_directory "$FUSESTRIPE_CACHES/$uid" || give_up "$FUSESTRIPE_CACHES/$uid is not this user's own"

as_user "$((FUSESTRIPE_SECONDS + FUSESTRIPE_MAX_WAIT))" "$state/run" "${into[@]}" "$state/run/prolog.log" \
    "$FUSESTRIPE" job start --id "$SLURM_JOB_ID" --mountpoint "$path" --max-wait "$FUSESTRIPE_MAX_WAIT" \
    --directory "$directory" --comment "$comment"
status=$?
case $status in
    0) ;;
    3) end_job "$SLURM_JOB_ID" ;; # it has a fusestripe.toml, and no request in it
    124 | 137)
        tidy "$SLURM_JOB_ID"
        give_up "the mount was not there in $((FUSESTRIPE_SECONDS + FUSESTRIPE_MAX_WAIT)) s"
        ;;
    *)
        tidy "$SLURM_JOB_ID"
        # Its own words are in the user's prolog.log, which task_prolog.sh shows.
        words=$(said "$state/run/prolog.log")
        note "not mounted: $words"
        printf '%s\n' "$words"
        [[ $FUSESTRIPE_STRICT != 1 ]] || exit 1
        ;;
esac
sweep
exit 0
