#!/bin/bash
# TaskProlog of Slurm: tells a job where prolog.sh mounted its tree, and, in the job's own output and once on
# each node, what went wrong there. How it is set up is in the head of prolog.sh.
#
# It runs as the user before each task, the batch script among them. Slurm reads what it prints: "export
# NAME=value" is for the task's environment, "print TEXT" for its output.
# shellcheck source=SCRIPTDIR/common.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/common.sh"

read_conf >/dev/null
run=$FUSESTRIPE_STATE/${SLURM_JOB_ID-none}/run
if [[ -r $run/mount ]] && IFS= read -r path <"$run/mount"; then
    printf 'export FUSESTRIPE_MOUNT=%s\nexport FUSESTRIPE_RUNTIME_DIR=%s\n' "$path" "$run"
    [[ -z $FUSESTRIPE_CACHES ]] || printf 'export FUSESTRIPE_CACHE_DIR=%s\n' "$FUSESTRIPE_CACHES/$(id -u)"
elif [[ ${FUSESTRIPE_RUNTIME_DIR-} == "$FUSESTRIPE_STATE"/* ]]; then
    # Of the job that submitted this one.
    printf 'unset FUSESTRIPE_MOUNT\nunset FUSESTRIPE_RUNTIME_DIR\n'
fi
if [[ -d $run ]] && (set -o noclobber && : >"$run/told") 2>/dev/null; then
    cat -- "$run/../message" "$run/prolog.log" 2>/dev/null |
        head -n 10 | tr -d '\0\r' | cut -c 1-500 | sed 's/^/print /'
fi
exit 0
