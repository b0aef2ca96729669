#!/usr/bin/env python3
"""https without a proxy: --tls-cert and --tls-key, with clients that people use.

    server_tls_test.py [KVASIR_BINARY] [unittest arguments]
"""

import contextlib
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
import time
import unittest

import openai

from certificates import Authority
from server_harness import BINARY, WAIT_S, Server, chunked_body, post_bytes, read_all, sse, user

DETERMINED = {"temperature": 0, "max_tokens": 24}
ENDS, DAY_S = "kvasir_tls_certificate_expiration_timestamp_seconds", 86400


def kvasir(*arguments, **environment):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S,
                          env=os.environ | environment)


class TlsServer(Server):
    """Its clients trust the authority of the test."""


def trusting(ca, version=None):
    context = ssl.create_default_context(cafile=ca)
    if version:
        context.minimum_version = context.maximum_version = version
    return context


class WithCertificates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.authority = Authority(folder.name)
        cls.certificate, cls.key = cls.authority.sign("first")
        TlsServer.tls = trusting(cls.authority.ca)

    @classmethod
    def serve(cls, *flags, certificate=None, key=None):
        return TlsServer("--tls-cert", certificate or cls.certificate, "--tls-key", key or cls.key, *flags)

    def logged(self, server, text):
        server.until(f"in the log: {text}", lambda: any(re.search(text, line) for line in server.log))


class WithTlsServer(WithCertificates):
    flags = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = cls.serve(*cls.flags)
        cls.addClassCleanup(cls.server.stop)


class Clients(WithTlsServer):
    """Answers through TLS are those without it, whatever the way of the answer."""
    flags = ("--admin-key", "boss", "--api-key", "alpha", "--log-level", "debug")  # each failure has its line
    HEADERS = {"Authorization": "Bearer alpha"}

    def test_the_start_says_where_and_until_when(self):
        text = "".join(self.server.log)
        self.assertRegex(text, r"(?m)^listening on https://127\.0\.0\.1:\d+$")
        self.assertRegex(text, r"(?m)^tls      localhost, 127\.0\.0\.1; until 20\d\d-\d\d-\d\d \d\d:\d\d UTC$")
        self.assertNotIn("warning", text)

    def test_versions(self):
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            context = trusting(self.authority.ca, version)
            context.set_alpn_protocols(["h2", "http/1.1"])
            plain = socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)
            with context.wrap_socket(plain, server_hostname="localhost") as client:
                self.assertEqual((client.version(), client.selected_alpn_protocol()), (name, "http/1.1"))
                self.assertRegex(client.cipher()[0], "GCM|CHACHA20")
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                self.assertTrue(read_all(client).startswith(b"HTTP/1.1 200 "))

    def test_older_versions_weak_ciphers_and_other_protocols_are_refused(self):
        def fails(context, reason):
            plain = socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)
            with plain, self.assertRaises(ssl.SSLError) as failed:
                context.wrap_socket(plain, server_hostname="localhost")
            self.assertIn(reason, str(failed.exception).upper().replace(" ", "_"))

        old = trusting(self.authority.ca, ssl.TLSVersion.TLSv1_1)
        old.set_ciphers("ALL:@SECLEVEL=0")
        fails(old, "VERSION")
        weak = trusting(self.authority.ca, ssl.TLSVersion.TLSv1_2)
        weak.set_ciphers("AES128-SHA:ECDHE-ECDSA-AES128-SHA")
        fails(weak, "HANDSHAKE_FAILURE")
        h2 = trusting(self.authority.ca)
        h2.set_alpn_protocols(["h2"])
        fails(h2, "NO_APPLICATION_PROTOCOL")
        fails(ssl.create_default_context(), "CERTIFICATE_VERIFY_FAILED")
        for reason in ("unsupported protocol", "no shared cipher"):
            self.logged(self.server, rf"a client could not begin TLS client=127\.0\.0\.1 reason=.*{reason}")
        self.assertEqual(self.server.get("/health"), {"status": "ok"})

    def test_openai(self):
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key="alpha", max_retries=0,
                           http_client=openai.DefaultHttpxClient(verify=trusting(self.authority.ca))) as client:
            whole = client.chat.completions.create(model="kvasir-demo", messages=user("Hello"), **DETERMINED)
            parts = client.chat.completions.create(model="kvasir-demo", messages=user("Hello"), stream=True, **DETERMINED)
            streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        self.assertEqual(streamed, whole.choices[0].message.content)
        self.assertTrue(streamed)

    def test_curl(self):
        result = subprocess.run(["curl", "-sS", "--cacert", self.authority.ca, "--noproxy", "*", "-w", "%{http_version} %{ssl_verify_result}",
                                 "-H", "Authorization: Bearer alpha", "-d", '{"content": "Hello"}', self.server.url + "/tokenize",
                                 "-H", "Content-Type: application/json"],
                                capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r'^\{.*"tokens":\[\d.*\]\}1\.1 0$')

    def test_the_page_metrics_and_ps(self):
        status, headers, page = self.server.request("GET", "/", headers={"Accept": "text/html"})
        self.assertEqual((status, headers["content-type"].split(";")[0]), (200, "text/html"))
        self.assertNotIn("http:", page)
        status, _, metrics = self.server.request("GET", "/metrics", headers={"Authorization": "Bearer boss"})
        self.assertEqual(status, 200)
        self.assertIn("vllm:num_requests_running", metrics)
        shown = kvasir("ps", "--url", self.server.url, "--api-key", "alpha", SSL_CERT_FILE=self.authority.ca)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("kvasir-demo ", shown.stdout)
        # Without a key nothing secret is sent to this machine's server.
        healthy = kvasir("health", "--url", self.server.url)
        self.assertEqual((healthy.returncode, healthy.stdout), (0, "ready\n"), healthy.stderr)
        unknown = kvasir("ps", "--url", self.server.url, "--api-key", "alpha")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn(f"the certificate of the server at {self.server.url} is not trusted: unable to get local issuer "
                      "certificate; SSL_CERT_FILE=FILE", unknown.stderr)
        health = kvasir("health", "--url", self.server.url.replace("https", "http"))
        self.assertEqual(health.returncode, 1, health.stderr)  # Docker gives 2 another meaning
        self.assertIn("speaks https: give https://", health.stderr)
        plain = kvasir("ps", "--url", self.server.url.replace("https", "http"), "--api-key", "alpha")
        self.assertEqual(plain.returncode, 2)
        self.assertIn(f"speaks https: give {self.server.url}", plain.stderr)

    def test_pages_of_the_same_address_may_call(self):
        origin = {"Origin": self.server.url, "Authorization": "Bearer alpha"}
        self.assertEqual(self.server.request("GET", "/v1/models", headers=origin)[0], 200)


class Connections(WithTlsServer):
    flags = ("--log-level", "debug")

    def test_keep_alive_head_and_pipelining(self):
        with self.server.open() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nHEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
                           + post_bytes("/tokenize", {"content": "a"}, "Connection: close"))
            received = read_all(client)
        first, second, third = re.split(rb"(?=HTTP/1\.1 200)", received)[1:]
        self.assertTrue(first.endswith(b'{"status":"ok"}'))
        self.assertRegex(second, rb"(?s)Content-Length: [1-9].*\r\n\r\n$")
        self.assertIn(b'"tokens"', third)

    def test_the_end_of_an_answer_is_told_from_a_cut(self):
        with self.server.open() as client:
            client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            self.assertTrue(read_all(client).endswith(b'{"status":"ok"}'))
            client.unwrap()  # raises where the other side said no farewell

    def test_long_bodies_and_answers(self):
        body = {"content": "word " * 200_000}
        with self.server.open() as client:
            client.sendall(post_bytes("/tokenize", body, "Connection: close", "Expect: 100-continue"))
            received = read_all(client)
        self.assertTrue(received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), received[:200])
        self.assertGreater(len(received), 500_000)

    def test_a_client_that_reads_slowly_gets_all(self):
        with self.server.open() as client:
            client.sendall(post_bytes("/tokenize", {"content": "word " * 200_000}))
            time.sleep(0.2)  # the answer fills the socket
            self.assertGreater(len(json.loads(chunked_body(client))["tokens"]), 100_000)

    def test_streams(self):
        body = {"prompt": [7] * 20, "max_tokens": 40, "ignore_eos": True, "stream": True, "temperature": 0}
        with self.server.open() as client:
            client.sendall(post_bytes("/v1/completions", body))
            first = client.recv(65536)
            while b"data: " not in first:
                first += client.recv(65536)
            self.assertNotIn(b"[DONE]", first)  # it comes as it is made
        streamed = self.server.post("/v1/completions", body)
        whole = self.server.post("/v1/completions", body | {"stream": False})
        events, done = sse(streamed)
        self.assertTrue(done)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events if e["choices"]), whole["choices"][0]["text"])

    def test_hanging_up_cancels(self):
        before = self.server.metric('kvasir_requests_total{outcome="cancelled"}')
        client = self.server.open()
        client.sendall(post_bytes("/v1/completions", {"prompt": [7] * 20, "max_tokens": 1900, "ignore_eos": True,
                                                      "stream": True}))
        self.assertIn(b"200 OK", client.recv(65536))
        client.close()
        self.server.until("cancelled", lambda: self.server.metric(
            'kvasir_requests_total{outcome="cancelled"}') == before + 1)

    def test_plain_http_is_told_where_to_go(self):
        for request in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
                        post_bytes("/tokenize", {"content": "a"})):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S) as client:
                client.sendall(request)
                answer = read_all(client)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer)
            self.assertIn(b"Connection: close\r\n", answer)
            self.assertIn("this port speaks https", json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"])

    def test_what_is_neither_is_closed(self):
        for data in (b"\x16\x03\x01\x00\x05hello", b"\x00" * 100, b"SSH-2.0-x\r\n" * 5000, b"\x80\x2e\x01\x00\x02" + b"\x01" * 60):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S) as client:
                with contextlib.suppress(OSError):  # it may be closed before all is sent
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                answer = read_all(client)
            self.assertNotIn(b"HTTP/1.1 200", answer)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})

    def test_a_first_message_that_announces_much_is_refused(self):
        hello = b"\x16\x03\x01\x40\x00" + b"\x01" + (100_000).to_bytes(3, "big") + b"\x03\x03" + b"x" * 16378
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S) as client:
            client.sendall(hello)
            self.assertEqual(read_all(client), b"")  # closed, though more would come
        self.logged(self.server, r"could not begin TLS .*first message has 100000 bytes; at most 16384")

    def test_a_first_record_without_the_length_of_its_message_is_refused(self):
        for size in range(4):
            message = b"\x01" + (100_000).to_bytes(3, "big")
            hello = b"\x16\x03\x01" + size.to_bytes(2, "big") + message[:size]
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S) as client:
                client.sendall(hello + b"\x16\x03\x01\x40\x00" + message[size:] + b"x" * (16384 - 4 + size))
                with contextlib.suppress(ConnectionError):
                    self.assertEqual(read_all(client), b"")
            self.logged(self.server, rf"could not begin TLS .*first record has {size} bytes; the head of a message takes 4")


class Room(WithTlsServer):
    """Connections count with what OpenSSL takes; those that do not finish their handshake give way."""
    flags = ("--request-memory", "16MiB")

    def test_fewer_connections_fit_than_without_tls(self):
        def accepts(server):
            return int(re.search(r"accepts  up to (\d+) connections", "".join(server.log))[1])

        self.logged(self.server, "accepts")
        with Server(*self.flags) as plain:
            self.assertEqual(accepts(self.server), accepts(plain) // 2)

    def test_a_scan_of_the_port_does_not_fill_the_log(self):
        begin = time.monotonic()
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S) as client:
                client.sendall(b"\x00" * 20)
                with contextlib.suppress(ConnectionError):
                    read_all(client)
        self.logged(self.server, "could not begin TLS")
        lines = sum("could not begin TLS" in line for line in self.server.log)
        self.assertLessEqual(lines, min(2 + time.monotonic() - begin, 49))

    def test_silent_clients_and_handshakes_that_stop_do_not_keep_others_out(self):
        hello = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"  # the rest does not come
        held = []
        try:
            for number in range(60):
                client = socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)
                held.append(client)
                if number % 2:
                    client.sendall(hello)
            for _ in range(5):
                self.assertEqual(self.server.get("/health"), {"status": "ok"})
        finally:
            for client in held:
                client.close()


class Files(WithCertificates):
    def wrong(self, *flags, says):
        result = kvasir("serve", "--port", "0", *flags)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)

    def test_what_cannot_be_used(self):
        other, other_key = self.authority.sign("other")
        made = self.folder / "made"
        made.mkdir()
        (made / "empty").touch()
        (made / "text").write_text("hello")
        (made / "cut").write_text(pathlib.Path(self.certificate).read_text()[:300])
        self.authority.openssl("pkey", "-in", self.key, "-aes256", "-passout", "pass:x", "-out", made / "sealed")
        self.authority.openssl("x509", "-in", self.certificate, "-outform", "der", "-out", made / "der")
        self.wrong("--tls-cert", self.certificate, says="--tls-cert: needs --tls-key FILE")
        self.wrong("--tls-key", self.key, says="--tls-key: needs --tls-cert FILE")
        self.wrong("--tls-cert", self.certificate, "--tls-key", other_key,
                   says=[f"--tls-key: {other_key} is not the key", f"--tls-cert {self.certificate}"])
        for path, says in (("missing", "No such file"), ("", "is not a regular file"), ("empty", "has no certificate"),
                           ("text", "BEGIN CERTIFICATE"), ("der", "BEGIN CERTIFICATE"), ("cut", "certificate 1 is damaged")):
            self.wrong("--tls-cert", str(made / path), "--tls-key", self.key, says=["--tls-cert: " + str(made / path), says])
        for path, says in (("missing", "No such file"), ("text", "BEGIN PRIVATE KEY"), ("sealed", "openssl pkey -in"),
                           ("empty", "has no private key")):
            self.wrong("--tls-cert", self.certificate, "--tls-key", str(made / path),
                       says=["--tls-key: " + str(made / path), says])
        if os.geteuid() != 0:
            os.chmod(made / "sealed", 0)
            self.wrong("--tls-cert", self.certificate, "--tls-key", str(made / "sealed"), says="Permission denied")

    def test_certificates_outside_their_time_are_warned_of(self):
        for name, times, says in (("expired", {"begins_h": -48, "ends_h": -1}, r"the certificate expired at \d{4}-"),
                                  ("early", {"begins_h": 3}, r"is not valid before \d{4}-"),
                                  ("soon", {"ends_h": 24 * 6 + 1}, r"expires in 6 days, at \d{4}-")):
            certificate, key = self.authority.sign(name, **times)
            with self.serve(certificate=certificate, key=key) as server:
                self.assertRegex("".join(server.log), rf"warning: --tls-cert: {certificate}: .*{says}.* UTC")
        os.chmod(key, 0o644)
        with self.serve(certificate=certificate, key=key) as server:
            self.assertRegex("".join(server.log), f"warning: --tls-key: {key}: every user of this machine can read the key")

    def test_sighup_reads_both_again(self):
        files = [str(self.folder / name) for name in ("live.crt", "live.key")]

        def put(pair):
            for source, target in zip(pair, files):
                shutil.copy(source, target + ".new")
                os.rename(target + ".new", target)

        def shown(server):
            with server.open() as client:
                return dict(name for part in client.getpeercert()["subject"] for name in part)["commonName"]

        put((self.certificate, self.key))
        with self.serve(certificate=files[0], key=files[1]) as server:
            self.assertEqual(shown(server), "first")
            with server.open() as kept:
                second = self.authority.sign("second", ends_h=24 * 13.5)
                put(second)
                self.assertEqual(shown(server), "first")
                self.assertAlmostEqual(server.metric(ENDS), time.time() + 90 * DAY_S, delta=WAIT_S)
                server.process.send_signal(signal.SIGHUP)
                self.logged(server, "the certificate was reloaded file=.*live.crt certificate=.*until 20")
                self.logged(server, "warning: .*live.crt: the certificate expires in 13 days, ")
                self.assertAlmostEqual(server.metric(ENDS), time.time() + 13.5 * DAY_S, delta=WAIT_S)
                self.assertEqual(shown(server), "second")
                # What is wrong changes nothing: the same one is shown, and it is said why.
                expired = self.authority.sign("late", begins_h=-48, ends_h=-1)
                for pair, says in (((self.certificate, second[1]), "is not the key of the first certificate"),
                                   (expired, "the certificate is valid from .* and it is"),
                                   ((os.devnull, second[1]), "has no certificate")):
                    put(pair)
                    server.process.send_signal(signal.SIGHUP)
                    self.logged(server, "warning: the certificate was not reloaded; the old one stays reason=.*" + says)
                    self.assertEqual(shown(server), "second")
                # A connection of before goes on.
                kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                self.assertTrue(read_all(kept).startswith(b"HTTP/1.1 200 "))

    def test_the_end_waits_for_a_stream(self):
        with self.serve("--cache", "none") as server, server.open() as client:
            client.sendall(post_bytes("/v1/completions", {"prompt": [7] * 20, "max_tokens": 300, "ignore_eos": True,
                                                          "stream": True}))
            self.assertIn(b"200 OK", client.recv(65536))
            idle = server.open()
            server.interrupt()
            received = read_all(client)
            self.assertIn(b"data: [DONE]", received)
            self.assertEqual(idle.recv(1), b"")
            idle.unwrap().close()
            self.assertEqual(server.wait(), 0)


if __name__ == "__main__":
    unittest.main()
