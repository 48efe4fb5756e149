#!/bin/bash
# Everything that is checked, on a fresh Debian or Ubuntu: installs what is needed, then ruff, mypy, all tests.
# Arguments go to pytest: tests/run.sh tests/unit -k cache
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/environment.sh

need_fuse_and_python
need 'command -v s3fs' s3fs
need 'command -v fio' fio
need 'command -v rsync' rsync
need 'command -v getfattr' attr
need 'command -v fuser' psmisc
need 'command -v bindfs' bindfs
need 'command -v setpriv && command -v unshare && command -v nsenter' util-linux
need 'command -v mount && command -v findmnt' mount util-linux
need 'command -v pgrep' procps
need 'test -x /usr/lib/systemd/system-generators/systemd-fstab-generator' systemd
need 'command -v openssl' openssl
need 'command -v nginx || test -x /usr/sbin/nginx' nginx-light
need 'command -v node' nodejs
need 'command -v npm' npm
need 'command -v javac' default-jdk-headless
need 'command -v mvn' maven
need "command -v cargo" cargo
need 'PATH=$PATH:/usr/sbin; command -v krb5kdc' krb5-kdc krb5-admin-server krb5-user
need 'PATH=$PATH:/usr/sbin; command -v ip && command -v tc' iproute2
need 'PATH=$PATH:/usr/sbin; command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch' \
    slurmctld slurmd munge slurm-client
need 'command -v systemd-analyze && test -x /lib/systemd/systemd' systemd
need 'command -v shellcheck' shellcheck
need 'command -v crun' crun
need 'command -v go' golang-go
need 'command -v man' man-db
need 'command -v zsh' zsh
need 'command -v fish' fish
need 'test -r /usr/share/bash-completion/bash_completion' bash-completion
install_needed
need_fuse_device
install_azurite
install_kustomize
make_venv test hdfs,arrow,peers,test,torch,bench,lint

say ruff
ruff check .
ruff format --check --quiet . || fail "not formatted: ruff format ."
say mypy
mypy
say pytest
exec python -m pytest "$@"
