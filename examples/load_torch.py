"""Load a torch checkpoint from a bucket, mounted for as long as the block lasts. Needs torch.

python examples/load_torch.py s3://bucket/run-7 step-1000/model.pt
"""

from __future__ import annotations

import sys
import tempfile

import torch

import fusestripe

if len(sys.argv) != 3:
    sys.exit(__doc__)
source, name = sys.argv[1:]
with (
    tempfile.TemporaryDirectory() as mountpoint,
    fusestripe.mount(source, mountpoint, stripe_count=16, memory="512MiB") as root,
):
    state = torch.load(root / name, weights_only=True)

total = sum(tensor.numel() for tensor in state.values())
print(f"{len(state)} tensors, {total:,} parameters")
