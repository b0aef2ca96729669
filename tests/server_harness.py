"""A running `kvasir serve`, and raw HTTP for requests that no client library sends."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WAIT_S = 300  # the longest that anything here may take on a busy machine; a failure, not a measurement


SLOW = bool(os.environ.get("KVASIR_SLOW"))  # the long half of a test, and what it measures


def most_s(seconds):
    """A limit of what a test measures: where it runs alone, in slow. Beside others it is WAIT_S."""
    return seconds if SLOW else WAIT_S


def slowness():
    """How many times the CPU time of this machine is that for which limits of it are written, at least 1."""
    took_s = []
    for _ in range(5):
        begin = time.process_time()
        text = json.dumps({str(i): [i, i / 7, str(i)] for i in range(2000)})
        for _ in range(5):
            text = json.dumps(json.loads(text))
        took_s.append(time.process_time() - begin)
    return max(1, statistics.median(took_s) / 0.015)


def binary():
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        return sys.argv.pop(1)
    return os.environ.get("KVASIR_BINARY", str(ROOT / "build/release/kvasir"))


BINARY = binary()


def check_answer(test, got, right, what=None):
    """Fails where an answer is wrong. That is not the clock's fault: no second try (`dev`, passes_alone)."""
    if got != right:
        print("WRONG ANSWER", flush=True)
    test.assertEqual(got, right, what)


def tcp_sockets(pid):
    """The TCP sockets of a process: (local port, peer's port, state as in /proc/net/tcp, bytes not yet read, inode)."""
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, peer = (int(end.split(":")[1], 16) for end in fields[1:3])
        yield local, peer, fields[3], int(fields[4].split(":")[1], 16), fields[9]


def listening_port(pid):
    """The port on which a process that says it nowhere waits for connections; None: not yet, or it has ended."""
    own = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                own.add(os.readlink(entry.path))
        return next((local for local, _, state, _, inode in tcp_sockets(pid)
                     if state == "0A" and f"socket:[{inode}]" in own), None)
    return None


class Server:
    """`kvasir serve` on a free port; stopped by its process id."""

    without_flag = ("--disk", "none")  # where the flags name no disk
    memory_flag = ("--kv-memory", "64MiB")  # where the flags say no memory
    port_flag = ("--port", "0")
    launcher = ()  # a command that becomes the one that follows it
    environment = None  # that of this process
    tls = None  # an ssl.SSLContext with which its clients speak https

    def __init__(self, *flags):
        if "--kv-memory" not in flags:
            flags = (*self.memory_flag, *flags)
        if "--disk" not in flags:
            flags = (*self.without_flag, *flags)
        self.process = subprocess.Popen(
            [*self.launcher, BINARY, "serve", *self.port_flag, *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"listening on (https?)://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[2])
                break
        else:
            raise RuntimeError("kvasir serve did not start: " + "".join(self.log))
        self.url = f"{found[1]}://127.0.0.1:{self.port}"
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def wait(self):
        """Exit status."""
        status = self.process.wait(WAIT_S)
        self.reader.join()
        self.process.stderr.close()
        return status

    def stop(self):
        if self.process.poll() is None:
            self.interrupt()
            self.interrupt()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def request(self, method, path, body=None, headers=None):
        """(status, headers, parsed JSON or text). A dict body is sent as JSON; bytes as they are."""
        connection = (http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=self.tls) if self.tls
                      else http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S))
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        fields = {k.lower(): v for k, v in response.getheaders()}
        is_json = fields.get("content-type") == "application/json" and text
        return response.status, fields, json.loads(text) if is_json else text.decode()

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)[2]

    def post(self, path, body, headers=None):
        status, _, answer = self.request("POST", path, body, headers)
        assert status == 200, (status, answer)
        return answer

    def metric(self, name):
        """The value of a series, with or without vLLM's labels; its own ones are part of the name:
        'kvasir_blocks{state="idle"}'."""
        name, _, labels = name.partition("{")
        wanted = labels.rstrip("}")
        for line in self.get("/metrics").splitlines():
            found = re.match(r"([^\s{#]+)(?:{(.*)})? (\S+)$", line)
            if not found or found.group(1) != name:
                continue
            others = re.sub(r'^model_name="(?:[^"\\]|\\.)*",engine="0",?', "", found.group(2) or "")
            if others == wanted:
                return float(found.group(3))
        raise KeyError(name)

    def until(self, what, condition):
        """Waits for a state that must come."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"never came: {what}"
            time.sleep(0.005)

    def until_read(self, client):
        """Until the server has read all that came from this connection, and done at once what it can."""
        port = client.getsockname()[1]
        self.until("the request is read", lambda: any(
            peer == port and local == self.port and state == "01" and unread == 0
            for local, peer, state, unread, _ in tcp_sockets(self.process.pid)))
        self.get("/health")  # the thread that reads has come by again

    def open(self):
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        return self.tls.wrap_socket(plain, server_hostname="127.0.0.1") if self.tls else plain

    def raw(self, data):
        """Sends bytes, returns all that comes until the server closes."""
        with self.open() as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            return read_all(s)


def read_all(s):
    received = b""
    while True:
        try:
            part = s.recv(65536)
        except ConnectionResetError:
            return received
        if not part:
            return received
        received += part


def chunked_body(s):
    """The body of an answer in chunks; takes nothing of what follows."""
    with s.makefile("rb", buffering=0) as file:
        def take(count):
            data = b""
            while len(data) < count:
                part = file.read(count - len(data))
                assert part, data[-100:]
                data += part
            return data

        def line():
            data = b""
            while not data.endswith(b"\r\n"):
                data += take(1)
            return data

        while line() != b"\r\n":
            pass
        body = b""
        while size := int(line(), 16):
            body += take(size)
            take(2)
        take(2)
        return body


def post_bytes(path, body, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def sse(text):
    """The objects of a stream, and whether it ended with [DONE]."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    done = bool(events) and events[-1] == "[DONE]"
    return [json.loads(e) for e in events[: -1 if done else None]], done


def fim_model(folder):
    """The bundled model whose vocabulary calls other special tokens by the names of a model that fills in."""
    names = {"<|system|>": "<|fim_prefix|>", "<|tool|>": "<|fim_suffix|>", "<|pad|>": "<|fim_middle|>"}
    model = pathlib.Path(folder) / "model"
    shutil.copytree(ROOT / "models/kvasir-demo", model)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (model / file).read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        (model / file).write_text(text)
    return str(model)


def user(text, system=None):
    first = [{"role": "system", "content": system}] if system else []
    return first + [{"role": "user", "content": text}]


class WithServer(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def refused(self, path, body, param=None, status=400, text=None):
        """One bad request: the status, the shape of the error, and a server that goes on."""
        got, _, answer = self.server.request("POST", path, body)
        self.assertEqual(got, status, answer)
        self.assertEqual(set(answer), {"error"})
        lengths = {"n_prompt_tokens", "n_prompt_tokens_is_least", "n_ctx"}
        self.assertEqual(set(answer["error"]) - lengths, {"message", "type", "param", "code"})
        if param:
            self.assertEqual(answer["error"]["param"], param, answer)
        if text:
            self.assertIn(text, answer["error"]["message"])
        self.assertEqual(self.server.get("/health"), {"status": "ok"})
