#!/usr/bin/env python3
"""nginx and Caddy with TLS, as docs/operations.md configures them: streams, and a restart without an error.

    proxy_test.py [KVASIR_BINARY] [unittest arguments]
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from certificates import Authority
from disk_server import DiskServer
from redis_server import free_port
from server_harness import ROOT, WAIT_S, chunked_body, post_bytes, user

MISSING = [name for name in ("nginx", "caddy") if not shutil.which(name)]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def configuration(name):
    """The block of the page that follows its name."""
    return re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.S)[1]


class WithProxy(unittest.TestCase):
    """`proxy` in front of two ports, as the page says, with other ports and files."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.authority = Authority(folder.name)
        self.files = self.authority.sign("chat", "DNS:chat.example")
        self.context = ssl.create_default_context(cafile=self.authority.ca)
        self.second = free_port()

    def adapted(self, text):
        for old, new in (("/etc/ssl/chat.crt", self.files[0]), ("/etc/ssl/chat.key", self.files[1]),
                         ("127.0.0.1:8080", f"127.0.0.1:{self.first}"), ("127.0.0.1:8081", f"127.0.0.1:{self.second}")):
            self.assertIn(old, text)
            text = text.replace(old, new)
        return text

    def start(self, configure, *command):
        """Starts a proxy at self.port, for which `configure` writes its file."""
        said = self.home / "said"
        for left in reversed(range(3)):  # another program may have taken the port
            self.port = free_port()
            configure()
            with said.open("wb") as log:  # a pipe that is not read fills, and the proxy waits
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log,
                                           env=os.environ | {"HOME": str(self.home), "XDG_DATA_HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home)})
            self.addCleanup(process.wait, WAIT_S)
            self.addCleanup(process.terminate)
            if self.comes_up(process):
                return
            self.assertTrue(left, said.read_text())

    def comes_up(self, process):
        """False: it has ended."""
        end = time.monotonic() + WAIT_S
        while process.poll() is None:
            try:
                self.connect(timeout_s=2).close()  # who has not its certificate is another program
                return True
            except OSError:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.02)
        return False

    def configure_nginx(self):
        site = self.adapted(configuration("nginx.conf")).replace("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl")
        temporary = "".join(f"{kind}_temp_path {self.home}/{kind};\n" for kind in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (self.home / "nginx.conf").write_text(f"daemon off; master_process off; pid {self.home}/nginx.pid; error_log stderr;\n"
                                              f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n")

    def configure_caddy(self):
        site = self.adapted(configuration("Caddyfile")).replace("chat.example {", f"chat.example:{self.port} {{", 1)
        (self.home / "Caddyfile").write_text("{\n    admin off\n    auto_https disable_redirects\n}\n" + site)

    def serve(self, port, *flags):
        class OnPort(DiskServer):
            port_flag = ("--port", str(port))
        server = OnPort(self.home, "--allowed-host", "chat.example", *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def connect(self, timeout_s=WAIT_S):
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)
        return self.context.wrap_socket(plain, server_hostname="chat.example")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("chat.example")
        connection.sock = self.connect()
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def check_streams(self):
        body = {"prompt": [7] * 20, "max_tokens": 200, "ignore_eos": True, "stream": True}
        with self.connect() as client:
            client.sendall(post_bytes("/v1/completions", body).replace(b"Host: localhost", b"Host: chat.example"))
            seen = b""
            while b"data: " not in seen:
                seen += client.recv(1)
            self.assertNotIn(b"[DONE]", seen)
        status, page = self.ask("GET", "/health")
        self.assertEqual((status, page), (200, b'{"status":"ok"}'))

    def check_restart(self, old, new):
        """Clients ask all the time while one server takes over from the other: all are answered."""
        status, made = self.ask("POST", "/v1/sessions", {"messages": user("Mine.")})
        self.assertEqual(status, 201, made)
        path = "/v1/sessions/" + json.loads(made)["id"]
        stop, failures, count = threading.Event(), [], []

        def work():
            while not stop.is_set():
                try:
                    status, text = self.ask("POST", "/v1/completions", {"prompt": [9] * 30, "max_tokens": 20, "ignore_eos": True})
                    count.append(status)
                    if status != 200:
                        failures.append((status, text))
                except OSError as error:
                    failures.append(error)

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        try:
            following = new()
            following.until("ready", lambda: following.request("GET", "/ready")[0] == 200)
            before = len(count)
            self.assertEqual(old.end(), 0)
            following.until("answers of the new one", lambda: len(count) > before + 20 or failures)
            following.until("the take-over", lambda: following.disk()["state"] == "on")
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        self.assertEqual(failures, [])
        following.until("the session", lambda: self.ask("GET", path)[0] == 200)

    def test_nginx(self):
        first = self.serve(0)
        self.first = first.port
        self.start(self.configure_nginx, "nginx", "-c", str(self.home / "nginx.conf"), "-p", str(self.home))
        self.check_streams()
        self.check_restart(first, lambda: self.serve(self.second))

    def test_caddy(self):
        first = self.serve(0, "--drain-delay-s", "3")
        self.first = first.port
        self.start(self.configure_caddy, "caddy", "run", "--config", str(self.home / "Caddyfile"), "--adapter", "caddyfile")
        self.check_streams()
        self.check_restart(first, lambda: self.serve(self.second))


if __name__ == "__main__":
    if MISSING and os.environ.get("CI"):
        raise FileNotFoundError(f"this test needs {', '.join(MISSING)}")
    if MISSING:
        print(f"skipped: no {' and no '.join(MISSING)}")
        raise SystemExit(77)
    unittest.main()
