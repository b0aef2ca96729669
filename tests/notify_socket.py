"""NotifySocket: what a service manager listens on (sd_notify)."""

import os
import select
import socket
import struct
import tempfile
import time

SO_TIMESTAMPNS = 35  # which Python's socket does not name


class NotifySocket:
    """`name`: a path, or @NAME in the abstract name space, which processes of another root reach too."""

    def __init__(self, abstract=True):
        folder = None if abstract else tempfile.mkdtemp(prefix="notify.")
        self.name = f"@kvasir-test.{os.getpid()}.{time.monotonic_ns()}" if abstract else f"{folder}/socket"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.sent_s = None  # when the last message that was read was sent: a test may read it late
        self.socket.bind("\0" + self.name[1:] if abstract else self.name)

    def next(self, wait_s=60):
        """The lines of the next message as a dict; None: there was none in time."""
        if not select.select([self.socket], [], [], wait_s)[0]:
            return None
        text, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("@ll")))
        for level, kind, stamp in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = struct.unpack("@ll", stamp)
                self.sent_s = seconds + nanoseconds / 1e9
        return dict(line.split("=", 1) for line in text.decode().split("\n") if line)

    def until(self, key, wait_s=60):
        """The first message that has this key."""
        end = time.monotonic() + wait_s
        while (left := end - time.monotonic()) > 0:
            message = self.next(left)
            if message and key in message:
                return message
        raise AssertionError(f"no {key} in {wait_s} s")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        if self.name.startswith("/"):
            os.unlink(self.name)
            os.rmdir(os.path.dirname(self.name))
