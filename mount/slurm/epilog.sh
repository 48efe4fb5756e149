#!/bin/bash
# Epilog of Slurm: unmounts what prolog.sh mounted for a job on this node, ends its daemon, and unpins what it
# pinned. How it is set up, and the settings, are in the head of prolog.sh.
#
# It does so however the job ended. Processes of the job that Slurm has not killed before get errors. What is
# in the cache stays, for the user's next job. It also ends what jobs left here whose Epilog was killed, or
# never ran. Where something does not end it says so in the system's log and exits with 0: the next Epilog
# tries again. With FUSESTRIPE_STRICT=1 it exits with 1, and Slurm drains the node.
# shellcheck source=SCRIPTDIR/common.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/common.sh"

[[ ${SLURM_JOB_ID-} =~ ^[0-9]+$ ]] || exit 0
read_conf
: "${SLURM_JOB_NODELIST:=${SLURM_NODELIST-}}" "${SLURMD_NODENAME:=$(hostname -s)}"
[[ -d $FUSESTRIPE_STATE ]] || exit 0
is_roots "$FUSESTRIPE_STATE" || give_up "$FUSESTRIPE_STATE is not root's alone: chown root, chmod 755"
end_job "$SLURM_JOB_ID" || give_up "something of this job is left in $FUSESTRIPE_MOUNTS or $FUSESTRIPE_STATE"
sweep
exit 0
