"""Makes calls of a running process fail: the Python side of fault_shim.c, whose first comment has the layout."""

import errno
import mmap
import os
import struct
import tempfile

from needs import needs

SHIM = os.environ.get("KVASIR_FAULT_SHIM", "")

# Each kind of call, and the error of a system that is short of something.
KINDS = {
    "open": (errno.EMFILE, errno.EACCES), "opendir": (errno.EMFILE,), "readdir": (errno.EIO,),
    "read": (errno.EIO, errno.EINTR), "write": (errno.ENOSPC, errno.EIO), "sync": (errno.EIO,),
    "truncate": (errno.ENOSPC,), "rename": (errno.ENOSPC,), "link": (errno.EIO,),
    "unlink": (errno.EIO,), "mkdir": (errno.ENOSPC,), "chmod": (errno.EPERM,),
    "flock": (errno.ENOLCK,), "utimens": (errno.EPERM,), "readlink": (errno.EACCES,),
    "access": (errno.EACCES,), "stat": (errno.EIO, errno.ENOMEM), "mmap": (errno.ENOMEM,),
    "munmap": (errno.ENOMEM,), "mprotect": (errno.ENOMEM,), "madvise": (errno.ENOMEM,),
    "mlock": (errno.ENOMEM, errno.EPERM), "getrandom": (errno.EIO,), "thread": (errno.EAGAIN,),
    "affinity": (errno.EPERM,), "getrlimit": (errno.EPERM,),
    "isatty": (errno.EIO,), "socket": (errno.EMFILE, errno.EACCES), "bind": (errno.EADDRINUSE,),
    "listen": (errno.EADDRINUSE,), "accept": (errno.EMFILE, errno.ECONNABORTED, errno.EINTR),
    "sockopt": (errno.ENOBUFS,), "sockname": (errno.ENOTCONN,),
    "recv": (errno.ENOMEM, errno.EINTR, errno.ECONNRESET),
    "send": (errno.ENOBUFS, errno.EINTR, errno.EPIPE), "shutdown": (errno.ENOTCONN,),
    "epoll_create": (errno.EMFILE,), "epoll_ctl": (errno.ENOSPC, errno.ENOMEM),
    "epoll_wait": (errno.EINTR,), "poll": (errno.ENOMEM, errno.EINTR), "eventfd": (errno.EMFILE,),
    "timerfd": (errno.EMFILE,), "pipe": (errno.EMFILE,), "close": (errno.EIO, errno.EINTR),
    "fcntl": (errno.EINVAL,), "ioctl": (errno.ENOTTY,), "syscall": (errno.EPERM,),
    "malloc": (errno.ENOMEM,),
}
FOREVER = 0xFFFFFFFF
HANG = 0xFFFF  # as an error: the call does not return while it is armed
LEAK = 0xFFFE  # the call works, and 1 MiB of memory stays in use


def needs_shim(test):
    return needs(SHIM or "KVASIR_FAULT_SHIM, the library that CMake makes of fault_shim.c")(test)


class Faults:
    """Controls the failures of a process that runs with self.environment."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile()
        self.file.truncate(4096)
        self.memory = mmap.mmap(self.file.fileno(), 4096)
        self.environment = {**os.environ, "LD_PRELOAD": SHIM, "KVASIR_FAULTS": self.file.name}

    def arm(self, kind, error, first, how_many=1):
        """Makes the first-th call from now on fail, and the next ones up to how_many."""
        self.disarm()
        self.memory[:64] = struct.pack("<32sIIQQQ", kind.encode(), error, how_many, first, 0, 0)
        self.memory[64:68] = struct.pack("<I", 1)

    def disarm(self):
        self.memory[64:68] = struct.pack("<I", 0)

    @property
    def seen(self):
        return struct.unpack("<Q", self.memory[48:56])[0]

    @property
    def failed(self):
        return struct.unpack("<Q", self.memory[56:64])[0]

    def close(self):
        self.memory.close()
        self.file.close()
