"""What hdfs-native says becomes one line and one errno."""

from __future__ import annotations

import errno

import pytest

from fusestripe.errors import errno_of
from fusestripe.origins.hdfs_errors import failure_of

DENIED = (
    'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x\\n\\tat java")'
)
SIMPLE = 'FatalRPCError("org.apache.hadoop.security.AccessControlException", "SIMPLE is not enabled")'


@pytest.mark.parametrize(
    ("error", "number", "transient"),
    [
        (FileNotFoundError("File does not exist: /a\n\tat java"), errno.ENOENT, False),
        (FileNotFoundError("Path is not a file: /a\n\tat java"), errno.EISDIR, False),
        (IsADirectoryError("/a"), errno.EISDIR, False),
        (RuntimeError(DENIED), errno.EACCES, False),
        (RuntimeError(SIMPLE), errno.EACCES, False),
        (RuntimeError('GSSAPIError(GSS_S_NO_CRED, 1, "Ticket expired")'), errno.EACCES, False),
        (RuntimeError('RPCError("org.apache.hadoop.ipc.StandbyException", "x")'), errno.EIO, True),
        (
            RuntimeError('RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "")'),
            errno.EIO,
            True,
        ),
        (RuntimeError('DataTransferError("All DataNodes failed: []")'), errno.EIO, True),
        (RuntimeError('UnsupportedErasureCodingPolicy("codec: xor")'), errno.EIO, False),
        (NotImplementedError("x"), errno.EIO, False),
        (OSError("Connection refused (os error 111)"), errno.EIO, True),
        (RuntimeError("something that nobody has seen before"), errno.EIO, True),
    ],
    ids=str,
)
def test_an_error(error: Exception, number: int, transient: bool) -> None:
    failure = failure_of(error, "hdfs://ns/a")
    assert errno_of(failure) == number
    assert failure.transient is transient
    assert "\n" not in str(failure)
    assert "java" not in str(failure)
    assert str(failure).startswith("hdfs://ns/a")
