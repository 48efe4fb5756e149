"""The daemon as on a kernel that sends nothing again (before Linux 6.9): it does not see that this would."""

from __future__ import annotations

import logging
import os

from fusestripe.kernel import abi

if __name__ == "__main__":
    abi.FUSE_HAS_RESEND = 0
    abi.FUSE_PASSTHROUGH = 0
    from fusestripe.daemon import main

    status = main()
    logging.shutdown()
    os._exit(status)
