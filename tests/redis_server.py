"""A real redis-server for a test, and the few commands that tests send to it."""

import contextlib
import random
import shutil
import socket
import subprocess
import tempfile
import time


def certificates(folder, host="IP:127.0.0.1"):
    """Makes an authority and a server's certificate that it signs, and returns the flags of a server with TLS."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    with open(f"{folder}/names", "w", encoding="utf-8") as names:
        names.write(f"subjectAltName={host}\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out",
            "server.crt", "-extfile", "names")
    return ("--tls-cert-file", f"{folder}/server.crt", "--tls-key-file", f"{folder}/server.key",
            "--tls-ca-cert-file", f"{folder}/ca.crt", "--tls-auth-clients", "no")


def free_port():
    """A port for a program that needs its number before: the kernel gives it to none that asks for any."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(20000, 32768)))
            return s.getsockname()[1]


PORT = object()  # among the flags of Redis: a free port


class DoesNotStart(RuntimeError):
    pass


class Redis:
    """Keeps nothing on the disk; ends with stop(). `ports`: those of PORT among its flags."""

    binary = shutil.which("redis-server") or "/usr/bin/redis-server"

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="kvasir-redis-")
        for left in reversed(range(5)):  # another program may have taken a port
            self.port, *self.ports = (free_port() for _ in range(1 + flags.count(PORT)))
            given = iter(self.ports)
            self.flags = [str(next(given)) if flag is PORT else flag for flag in flags]
            self.url = f"redis://127.0.0.1:{self.port}"
            try:
                return self.start()
            except DoesNotStart:
                if not left:
                    raise

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", self.folder, *self.flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1000):
            if self.is_up():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        raise DoesNotStart("redis-server does not start")

    def is_up(self):
        """Whether this process answers, which has bound all its ports then; another may have taken one."""
        try:
            return b"process_id:%d\r\n" % self.process.pid in self.ask("INFO", "server")
        except (OSError, TypeError, ValueError):
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        with socket.create_connection(("127.0.0.1", self.port), 10) as s:
            s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
            with s.makefile("rb") as replies:
                return self.read(replies)

    def read(self, replies):
        line = replies.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read(replies) for _ in range(int(rest))]
        return int(rest) if kind == b":" else line.decode()

    def records(self):
        """Names of blocks; the objects of owners have shorter ones."""
        return sorted(name for name in self.ask("KEYS", "*") if len(name) == 139)


class Cluster:
    """Three of them, each with a third of the slots; ends with stop(). Asks all for what one alone cannot say."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="kvasir-cluster-")
        self.nodes = []
        for i in range(3):
            self.nodes.append(Redis("--cluster-enabled", "yes", "--cluster-config-file", f"{self.folder}/{i}",
                                    "--cluster-port", PORT, "--cluster-node-timeout", "5000"))
            self.nodes[i].ask("CLUSTER", "ADDSLOTSRANGE", 16384 * i // 3, 16384 * (i + 1) // 3 - 1)
            self.nodes[i].ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, *node.ports)
        for _ in range(1000):
            states = [node.ask("CLUSTER", "INFO") for node in self.nodes]
            if all(b"cluster_state:ok" in s and b"slots_ok:16384" in s and b"nodes:3" in s for s in states):
                break
            time.sleep(0.01)
        else:
            raise RuntimeError("the cluster does not come up")
        self.url = self.nodes[0].url

    def stop(self):
        for node in self.nodes:
            node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def records(self):
        return sorted(name for node in self.nodes for name in node.records())

    def ask(self, *words):
        """What each says; of a command without a name."""
        return [node.ask(*words) for node in self.nodes]
