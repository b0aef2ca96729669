"""llama.cpp's server, the peer of load_bench.py and disk_bench.py."""
import contextlib
import http.client
import socket
import subprocess
import time

from serve_bench import Server


class LlamaServer(Server):
    """llama.cpp's server with two threads: `slots` requests at once over one pool of `ctx` tokens."""

    OWN_FLAGS = ("--kv-unified", "--no-webui")

    def __init__(self, program, model, slots=8, ctx=34816, flags=()):
        self.command = [program, "-m", model, "--host", "127.0.0.1", "--port", "0", "-np", str(slots), "-c", str(ctx),
                        "-t", "2", "-tb", "2", *self.OWN_FLAGS, *flags]

    def __enter__(self):
        with contextlib.closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.address = free.getsockname()
        self.command[self.command.index("--port") + 1] = str(self.address[1])
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(map(str, self.command))}: ended with status {self.process.returncode}")
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection(*self.address, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return self
            time.sleep(0.1)
        raise SystemExit("llama-server is not ready after 60 s")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class IkLlamaServer(LlamaServer):
    """ik_llama.cpp's server."""

    OWN_FLAGS = ("-rtr",)  # weights are repacked for this CPU
