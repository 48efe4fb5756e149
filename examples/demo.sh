#!/bin/bash
# See it work, on a fresh Debian or Ubuntu with Python 3.10 or newer: installs what is needed, then loads a
# checkpoint from a real S3 server on this machine through a mount, and shows how fast that was.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*)
    sed -n '2,3s/^# //p' "$0"
    echo "usage: examples/demo.sh [--size 512MiB] [--format torch|safetensors] [--svg FILE]"
    exit
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/environment.sh

need_fuse_and_python
install_needed
need_fuse_device
make_venv demo demo

exec python -m examples.demo "$@"
