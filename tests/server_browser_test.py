#!/usr/bin/env python3
"""What a browser could be made to send: by a page on another origin, or by one that gave its own
name the server's address (DNS rebinding).

    server_browser_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import unittest

from server_harness import WithServer, read_all

CHAT = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1}


class Browser(WithServer):
    def ask(self, method="GET", path="/health", *headers, host="localhost", version="1.1", body=b""):
        """(status, lower-case headers, code of the error or "")"""
        lines = [f"{method} {path} HTTP/{version}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        if host is not None:
            lines.insert(1, f"Host: {host}")
        with self.server.open() as s:
            s.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            head, text = read_all(s).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").split(b"\r\n\r\n", 1)
        first, *fields = head.decode().split("\r\n")
        fields = {k.lower(): v for k, v in (line.split(": ", 1) for line in fields)}
        code = json.loads(text)["error"]["code"] if b'"error"' in text else ""
        return int(first.split()[1]), fields, code

    def says(self, expected, *request, **options):
        status, _, code = self.ask(*request, **options)
        self.assertEqual((status, code), expected, (request, options))

    def from_page(self, origin, method="POST", path="/v1/chat/completions", *headers, host=None):
        body = json.dumps(CHAT).encode() if method == "POST" else b""
        return self.ask(method, path, f"Origin: {origin}", *headers, body=body,
                        host=host or f"127.0.0.1:{self.server.port}")


class Rebinding(Browser):
    """A server on loopback without flags."""

    def test_names_of_loopback_are_answered(self):
        port = self.server.port
        for host in ("localhost", f"localhost:{port}", "LOCALHOST", "localhost.", "a.localhost:1", "127.0.0.1",
                     f"127.0.0.1:{port}", "127.1.2.3", "[::1]", f"[::1]:{port}", "[::ffff:127.0.0.1]"):
            self.says((200, ""), host=host)

    def test_other_names_get_nothing(self):
        for host in ("evil.example", f"evil.example:{self.server.port}", "localhost.evil.example",
                     "127.0.0.1.evil.example", "evil-localhost", "192.168.1.5", "0.0.0.0", "[::]", "127.1",
                     "localhost:x", ""):
            self.says((421, "misdirected"), host=host)
        for method, path in (("GET", "/v1/cache"), ("DELETE", "/v1/cache"), ("GET", "/metrics"), ("GET", "/"),
                             ("POST", "/v1/chat/completions"), ("OPTIONS", "/v1/cache"), ("GET", "/nothing"),
                             ("GET", "/ready"), ("HEAD", "/health")):
            status, _, _ = self.ask(method, path, host="evil.example", body=b"{}" if method == "POST" else b"")
            self.assertEqual(status, 421, (method, path))

    def test_the_host_of_an_absolute_target_counts(self):
        self.says((421, "misdirected"), "GET", "http://evil.example/health")
        self.says((421, "misdirected"), "GET", "http://evil.example:80?x")
        self.says((421, "misdirected"), "GET", "http://localhost@evil.example/health")
        self.says((421, "misdirected"), "GET", "http:///health")
        self.says((200, ""), "GET", "http://localhost:1/health")
        # RFC 9112, section 3.2.2: a Host header beside it says nothing.
        self.says((200, ""), "GET", "http://localhost/health", host="evil.example")
        self.says((421, "misdirected"), "GET", "http://evil.example/health", host=None, version="1.0")

    def test_http_1_0_may_leave_the_name_out(self):
        self.says((200, ""), host=None, version="1.0")
        self.says((421, "misdirected"), host="evil.example", version="1.0")

    def test_a_refused_head_has_no_effect(self):
        before = self.server.metric("vllm:prompt_tokens_total")
        for headers in ((), ("Expect: 100-continue",)):
            self.says((421, "misdirected"), "POST", "/v1/chat/completions", *headers, host="evil.example",
                      body=json.dumps(CHAT).encode())
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total"), before)

    def test_any_page_may_call_by_default(self):
        for origin in ("https://app.example", "null", "http://localhost:3000"):
            status, fields, _ = self.from_page(origin)
            self.assertEqual((status, fields["access-control-allow-origin"]), (200, "*"))


class AllowedHosts(Browser):
    flags = ("--allowed-host", "Chat.Example", "--allowed-host", "10.0.0.7")

    def test_they_are_answered_beside_those_of_loopback(self):
        for host in ("chat.example", "CHAT.EXAMPLE:99", "10.0.0.7:1", "localhost", "127.0.0.1"):
            self.says((200, ""), host=host)
        for host in ("a.chat.example", "chat.example.org", "10.0.0.8", "evil.example"):
            self.says((421, "misdirected"), host=host)


class ListedOrigins(Browser):
    flags = ("--cors-origin", "https://app.example", "--cors-origin", "http://b.example:81")
    FOREIGN = ("https://evil.example", "null", "http://app.example", "https://app.example:8443",
               "https://app.example.evil.example", "http://b.example", "http://localhost:3000", "file://x", "x")

    def test_a_foreign_page_gets_nothing_whatever_it_asks(self):
        before = self.server.metric("vllm:prompt_tokens_total")
        for origin in self.FOREIGN:
            for headers in (("Content-Type: application/json",), ("Content-Type: text/plain",), ()):
                status, fields, code = self.from_page(origin, "POST", "/v1/chat/completions", *headers)
                self.assertEqual((status, code), (403, "origin_not_allowed"), origin)
                self.assertNotIn("access-control-allow-origin", fields)
        for method, path in (("GET", "/v1/cache"), ("GET", "/health"), ("GET", "/metrics"), ("DELETE", "/v1/cache"),
                             ("OPTIONS", "/v1/cache"), ("POST", "/tokenize"), ("GET", "/")):
            self.assertEqual(self.from_page("https://evil.example", method, path)[0], 403, (method, path))
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total"), before)

    def test_two_origins_are_none(self):
        for pair in (("https://app.example", "https://evil.example"), ("https://evil.example", "https://app.example")):
            status, _, code = self.ask("GET", "/health", *(f"Origin: {origin}" for origin in pair))
            self.assertEqual((status, code), (403, "origin_not_allowed"))

    def test_listed_pages_and_the_server_s_own_may_call(self):
        port = self.server.port
        for origin in ("https://app.example", "http://b.example:81"):
            for headers in ((), ("Content-Type: text/plain",)):
                status, fields, _ = self.from_page(origin, "POST", "/v1/chat/completions", *headers)
                self.assertEqual((status, fields["access-control-allow-origin"]), (200, origin))
                self.assertEqual(fields["vary"], "Origin")
        self.assertEqual(self.from_page(f"http://127.0.0.1:{port}")[0], 200)
        self.assertEqual(self.from_page(f"http://localhost:{port}", host=f"localhost:{port}")[0], 200)
        self.assertEqual(self.from_page(f"http://localhost:{port}")[0], 403)  # another origin for a browser
        self.assertEqual(self.from_page(f"http://127.0.0.1:{port + 1}")[0], 403)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})  # no browser: no Origin

    def test_a_rebound_page_is_not_the_server_s_own(self):
        status, _, code = self.from_page("http://evil.example", host="evil.example")
        self.assertEqual((status, code), (421, "misdirected"))


class NoOrigins(Browser):
    flags = ("--cors-origin", "none")

    def test_only_the_server_s_own_pages_may_call(self):
        for origin in ("https://app.example", "null", "http://localhost:3000"):
            self.assertEqual(self.from_page(origin)[::2], (403, "origin_not_allowed"), origin)
        self.assertEqual(self.from_page(f"http://127.0.0.1:{self.server.port}")[0], 200)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})


class LoopbackOrigins(Browser):
    flags = ("--cors-origin", "localhost", "--cors-origin", "https://app.example")

    def test_every_page_of_this_machine_may_call(self):
        for origin in ("http://localhost:3000", "https://localhost", "http://127.0.0.1:5173", "http://[::1]:1",
                       "http://dev.localhost:8000", "https://app.example"):
            status, fields, _ = self.from_page(origin)
            self.assertEqual((status, fields["access-control-allow-origin"]), (200, origin))
        for origin in ("https://evil.example", "http://localhost.evil.example", "null", "ftp://localhost"):
            self.assertEqual(self.from_page(origin)[0], 403, origin)


if __name__ == "__main__":
    unittest.main()
