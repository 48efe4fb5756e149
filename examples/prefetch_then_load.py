"""Fill the cache while the job still does something else, then load from it. Needs safetensors.

python examples/prefetch_then_load.py s3://bucket/run-7 step-1000/model.safetensors
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from safetensors.numpy import load_file

import fusestripe

if len(sys.argv) != 3:
    sys.exit(__doc__)
source, name = sys.argv[1:]
with (
    ThreadPoolExecutor(1) as pool,
    tempfile.TemporaryDirectory() as mountpoint,
    fusestripe.mount(source, mountpoint) as root,
):
    prefetched = pool.submit(fusestripe.prefetch, root / name)
    # ... here the job builds its model and joins its process group ...
    for report in prefetched.result():
        print(f"{report.path}: {report.state}, {report.done:,} bytes {report.error}".rstrip())
    state = load_file(root / name)

print(f"{len(state)} tensors")
