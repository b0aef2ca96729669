#!/usr/bin/env python3
"""Flags of `kvasir serve` that are certainly wrong are refused before a model is loaded, with a
sentence; and what SIGHUP does.

    cli_flags_test.py [KVASIR_BINARY]
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import cli_support
from cli_support import SMALL, CliTest, get_json, kvasir, main, server

BAD_KEYS = ["", "se cret", " secret", "secret ", "secret\n", "\tsecret", "secr\u00e9t", "secret\x7f", "\x01secret",
            os.fsdecode(b"secret\xff"), "secret\u200b", "s" * 2000]


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


class FlagsTest(CliTest):
    def refused(self, *arguments, says):
        # Accepted flags fail at the model, before the server listens.
        self.wrong("serve", "--model", "/no/such", *arguments, says=says, timeout=20)

    def refused_in_config(self, values, says):
        with folder() as path:
            config = path / "config.json"
            config.write_text(values if isinstance(values, str) else json.dumps(values))
            if says.startswith("--"):
                says = f"key '{says[2:]}'"
            self.refused("--config", config, says=says)

    def test_a_host_that_is_empty(self):
        self.refused("--host", "", says="--host")
        self.refused("--host=", says="--host")
        for host in ("", "127.0.0.1\0.evil", "\0"):
            self.refused_in_config({"host": host}, says="host")
        self.wrong("serve", "--port", "0", "--host", " ", *SMALL, says="--host")

    def test_keys_that_no_header_can_carry_are_refused_and_never_shown(self):
        for flag in ("--api-key", "--admin-key"):
            for key in BAD_KEYS:
                result = kvasir("serve", "--model", "/no/such", flag, key, timeout=20)
                self.assertEqual(result.returncode, 2, (flag, key))
                self.assertIn(flag, result.stderr)
                self.assertNotIn("secr", result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
        self.refused("--api-key", "good", "--api-key", "ba d", says="--api-key")
        self.refused_in_config({"api-key": ["good", "se\u0000cret"]}, says="api-key")
        self.refused_in_config({"api-key": "se cret"}, says="--api-key")
        self.refused_in_config({"admin-key": "secret\n"}, says="--admin-key")
        self.refused_in_config({"admin-key": ["a", "b"]}, says="admin-key")

    def test_a_file_of_keys(self):
        with folder() as path:
            keys = path / "keys"
            for text in ("", "\n\n", "good\nse cret\n", "good\n\nsecr\u00e9t\n", "secret \n", "sec\0ret\n", "s" * 2000):
                keys.write_text(text)
                result = kvasir("serve", "--model", "/no/such", "--api-key-file", keys, timeout=20)
                self.assertEqual(result.returncode, 2, text)
                self.assertIn("--api-key-file", result.stderr)
                self.assertNotIn("secr", result.stderr)
            keys.write_text("alpha\r\n\nbeta")
            with server(*SMALL, "--api-key-file", str(keys), "--api-key", "gamma") as (url, _):
                for key, status in (("alpha", 200), ("beta", 200), ("gamma", 200), ("delta", 401), ("", 401)):
                    request = urllib.request.Request(url + "/v1/models", headers={"x-api-key": key})
                    try:
                        with urllib.request.urlopen(request, timeout=30) as answer:
                            self.assertEqual(answer.status, status)
                    except urllib.error.HTTPError as error:
                        self.assertEqual(error.code, status)
                        error.close()

    def test_files_that_are_not_regular_or_too_large(self):
        with folder() as path:
            os.mkfifo(path / "fifo")
            (path / "folder").mkdir()
            with open(path / "large", "w") as large:
                large.truncate((16 << 20) + 1)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path / "socket"))
            (path / "link").symlink_to("/dev/zero")
            for flag in ("--config", "--chat-template-file", "--api-key-file"):
                for name in ("/dev/zero", "/dev/null", "/dev/urandom", path / "fifo", path / "folder", path / "large",
                             path / "socket", path / "link", path / "none", ""):
                    self.refused(flag, name, says=[flag, str(name)])
            reading, writing = os.pipe()
            result = subprocess.run([cli_support.BINARY, "serve", "--config", f"/dev/fd/{reading}"], pass_fds=[reading], timeout=20,
                                    capture_output=True, text=True)
            os.close(reading), os.close(writing)
            self.assertEqual(result.returncode, 2)
            # A link to a regular file is allowed.
            (path / "config.json").write_text('{"prot": 1}')
            (path / "good").symlink_to(path / "config.json")
            self.refused("--config", path / "good", says="'prot'")

    def test_a_config_says_everything_once(self):
        for text in ('{"port": 1, "port": 2}', '{"port": 1, "ctx-size": 9, "port": 1}', '{"port": 1, "p\\u006frt": 1}',
                     '{"alias": "a", "alias": ["b"]}', '{"api-key": "a", "api-key": "b"}',
                     '{"port": null, "port": 1}'):
            self.refused_in_config(text, says="more than once")
        self.refused_in_config('{"port": 1}\0{', says="not valid JSON at line 1, byte 12")
        self.refused_in_config('{\n "port": 18080,}', says="not valid JSON at line 2, byte 16")
        self.refused_in_config('{"port": ' + "[" * 100000, says="nests deeper")
        self.refused_in_config('{"kv_memory": 1}', says="as kv-memory")
        # An empty list would open the server; a number is written in several ways.
        for key in ("api-key", "cors-origin", "allowed-host", "alias"):
            for value in ([], 7, 12345678901234567890123, [1000.0], [True], [None]):
                self.refused_in_config({key: value}, says=f"'{key}' takes a string")
        self.refused_in_config({"admin-key": 1e3}, says="'admin-key' takes a string")
        self.refused_in_config('{"port": {"a": 1, "a": 2}}', says="'port'")

    def test_templates_that_are_none(self):
        with folder() as path:
            file = path / "chat.jinja"
            for text, says in ((b"", "empty"), (b" \n\t", "empty"), (b"\xef\xbb\xbf\n", "empty"), (b"a\xff", "UTF-8 at byte 1"),
                               (b"{% if", "line 1, column")):
                file.write_bytes(text)
                self.refused("--chat-template-file", file, says=f"--chat-template-file: {file}: ")
                self.refused("--chat-template-file", file, says=says)
            file.write_bytes(b"\xef\xbb\xbf{{ messages[0].content }}")
            with server(*SMALL, "--chat-template-file", str(file)) as (url, _):
                body = json.dumps({"messages": [{"role": "user", "content": "Hi."}]}).encode()
                with urllib.request.urlopen(url + "/apply-template", data=body, timeout=10) as answer:
                    self.assertEqual(json.load(answer)["prompt"], "Hi.")

    def test_names_that_are_not_text(self):
        for alias in ("", os.fsdecode(b"\xff"), os.fsdecode(b"a\xc3"), os.fsdecode(b"\xed\xa0\x80"), "a\nb", "\x1b[2J",
                      "a\x7f", "\t"):
            self.refused("--alias", alias, says="--alias")
            self.refused("--alias", "good", "--alias", alias, says="--alias")
        self.refused_in_config({"alias": ["a\u0000b"]}, says="alias")
        with server(*SMALL, "--alias", "模型/one two") as (url, _):
            self.assertEqual(get_json(url + "/v1/models")["data"][0]["id"], "模型/one two")

    def test_origins_that_are_none(self):
        for origin in ("", " ", "null", "app.example", "https://", "https://app.example/", "https://app.example/path",
                       "https://a.example https://b.example", "https://a.example,https://b.example", " https://a.example",
                       "https://*.example", "http://a:99999", "None", "LOCALHOST"):
            self.refused("--cors-origin", origin, says="--cors-origin")
        for pair in (("none", "https://a.example"), ("https://a.example", "none"), ("*", "https://a.example"),
                     ("*", "none"), ("localhost", "none")):
            self.refused("--cors-origin", pair[0], "--cors-origin", pair[1], says=["--cors-origin", "cannot be combined"])
        self.refused_in_config({"cors-origin": ""}, says="--cors-origin")
        self.refused_in_config({"cors-origin": ["none", "http://a"]}, says="--cors-origin")

    def test_hosts_that_are_none(self):
        for host in ("", "a.example:80", "http://a.example", "a.example/", "*", "*.example", "a b", "a,b"):
            self.refused("--allowed-host", host, says="--allowed-host")

    def test_the_longest_draft(self):
        for number in ("33", "-1", "many"):
            self.refused("--draft-max", number, says="--draft-max")
            self.refused("--spec-draft-n-max", number, says="--spec-draft-n-max")
        self.refused("--draft-max", "32", says="/no/such")

    def test_the_help_lists_them(self):
        text = self.ok("serve", "--help")
        for flag in ("--host", "--api-key ", "--api-key-file", "--admin-key", "--cors-origin", "--allowed-host",
                     "--config", "--alias", "--chat-template-file"):
            self.assertIn(flag, text)


class Hangup(CliTest):
    BODY = {"prompt": [5, 6, 7], "max_tokens": 2000, "ignore_eos": True, "stream": True}

    def test_it_drains_as_sigterm_does(self):
        for number in (signal.SIGHUP, signal.SIGTERM):
            with server(*SMALL) as (url, process):
                request = urllib.request.Request(url + "/v1/completions", json.dumps(self.BODY).encode())
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.assertTrue(answer.readline())
                    process.send_signal(number)
                    text = answer.read()
                self.assertTrue(text.endswith(b"data: [DONE]\n\n"), number)
                # Read stderr, so that a full pipe never blocks the server.
                threading.Thread(target=process.stderr.read).start()
                self.assertEqual(process.wait(60), 0, number)

    def test_a_second_one_ends_it_at_once(self):
        with server(*SMALL) as (url, process):
            request = urllib.request.Request(url + "/v1/completions", json.dumps(
                self.BODY | {"prompt": [[5]] * 200}).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.readline()
                process.send_signal(signal.SIGHUP)
                process.stderr.readline()  # finishing running requests
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(60), 130)

    def test_under_nohup_it_is_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited
        try:
            with server(*SMALL) as (url, process):
                process.send_signal(signal.SIGHUP)
                for _ in range(20):
                    self.assertEqual(get_json(url + "/ready")["status"], "ready")
                self.assertIsNone(process.poll())
        finally:
            signal.signal(signal.SIGHUP, before)


if __name__ == "__main__":
    main()
