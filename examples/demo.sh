#!/bin/bash
# See it work, on a fresh Debian or Ubuntu with Python 3.10 or newer: installs what is needed, then loads a
# checkpoint from a real S3 server on this machine through a mount, and shows how fast that was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/environment.sh

need_fuse_and_python
install_needed
need_fuse_device
make_venv demo demo

exec python -m examples.demo "$@"
