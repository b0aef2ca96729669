"""A store of a fleet as a slow or broken network shows it, for tests and measurements."""

import collections
import contextlib
import socket
import threading
import time


class Proxy:
    """Between a server and the store: a speed in bytes/s, a delay in s, and from `trouble_after` bytes of a
    connection's answers on one of `stop`, `break`, `kill` (as break, and no new connections), `drip`. Counts the bytes of answers."""

    def __init__(self, port, speed=None, delay=0.0):
        self.port, self.speed, self.delay = port, speed, delay
        self.trouble, self.trouble_after, self.bytes = None, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            store = socket.create_connection(("127.0.0.1", self.port))
            for end in (client, store):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.join(client, store, False)
            self.join(store, client, True)

    def join(self, source, sink, is_answer):
        queue, ready = collections.deque(), threading.Semaphore(0)

        def read():
            data = b"-"
            while data:
                try:
                    data = source.recv(1 << 18)
                except OSError:
                    data = b""
                queue.append((time.monotonic() + self.delay / 2, data))
                ready.release()

        def write():
            free, passed = 0.0, 0
            while True:
                ready.acquire()
                due, data = queue.popleft()
                now = time.monotonic()
                free = max(free, now) + (len(data) / self.speed if self.speed else 0)
                time.sleep(max(0.0, max(due, free if self.speed else 0) - now))
                passed += len(data) if is_answer else 0
                try:
                    if is_answer and self.trouble and passed > self.trouble_after:
                        if self.trouble == "kill":
                            with contextlib.suppress(OSError):  # another connection did it
                                self.listener.shutdown(socket.SHUT_RDWR)
                        if self.trouble in ("break", "kill"):
                            raise OSError
                        for byte in data if self.trouble == "drip" else ():
                            sink.sendall(bytes([byte]))
                            time.sleep(1)
                        continue  # stopped
                    if not data:
                        raise OSError
                    sink.sendall(data)
                    if is_answer:
                        self.bytes += len(data)
                except OSError:
                    for end in (source, sink):
                        with contextlib.suppress(OSError):  # close() alone ends nothing while a thread reads from it
                            end.shutdown(socket.SHUT_RDWR)
                        end.close()
                    return

        for part in (read, write):
            threading.Thread(target=part, daemon=True).start()

    def close(self):
        self.listener.close()
