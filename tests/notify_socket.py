"""NotifySocket: what a service manager listens on (sd_notify)."""

import os
import select
import socket
import tempfile
import time


class NotifySocket:
    """`name`: a path, or @NAME in the abstract name space, which processes of another root reach too."""

    def __init__(self, abstract=True):
        folder = None if abstract else tempfile.mkdtemp(prefix="notify.")
        self.name = f"@kvasir-test.{os.getpid()}.{time.monotonic_ns()}" if abstract else f"{folder}/socket"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.name[1:] if abstract else self.name)

    def next(self, wait_s=60):
        """The lines of the next message as a dict; None: there was none in time."""
        if not select.select([self.socket], [], [], wait_s)[0]:
            return None
        text = self.socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in text.split("\n") if line)

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
