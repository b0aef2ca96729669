#!/usr/bin/env python3
"""`kvasir serve` as a service: its configuration, what it says to systemd, its folders, credentials and health.

    service_test.py [KVASIR_BINARY] [unittest arguments]
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock

import yaml

from notify_socket import NotifySocket
from server_harness import BINARY, ROOT, Server

PACKAGING = ROOT / "packaging"
CLEAN = {k: v for k, v in os.environ.items()
         if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "STATE_DIRECTORY", "CACHE_DIRECTORY", "CREDENTIALS_DIRECTORY")}


def run(*arguments, **environment):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**CLEAN, **environment})


def server(*flags, **environment):
    class Service(Server):
        pass
    Service.environment = {**CLEAN, **environment}
    return Service(*map(str, flags))


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(0o600)
        return path


class Config(WithFolder):
    def refused(self, content, *flags):
        result = run("serve", "--config", self.write("serve.json", content), *flags)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        return result.stderr.replace(f"kvasir serve: --config: {self.folder}/serve.json", "")

    def test_an_unknown_key_names_the_nearest(self):
        self.assertEqual(self.refused({"kv-memroy": "1GiB"}),
                         " has the unknown key 'kv-memroy' (did you mean 'kv-memory'?); keys are flags without the "
                         "leading --, such as kv-memory\n")
        self.assertIn("'ctx_size' (did you mean 'ctx-size'?)", self.refused({"ctx_size": 512}))
        self.assertIn("unknown key 'whatever'; keys", self.refused({"whatever": 512}))

    def test_a_wrong_type_names_what_the_key_takes(self):
        self.assertEqual(self.refused({"port": True}), ": key 'port' takes a string or a whole number; it is a boolean\n")
        self.assertEqual(self.refused({"no-page": "yes"}), ": key 'no-page' takes true or false; it is a string\n")
        self.assertEqual(self.refused({"api-key": [5]}),
                         ": key 'api-key' takes a string, or an array of at least one string; it is an array whose item 0 is 5\n")
        self.assertEqual(self.refused({"port": "x"}),
                         ": key 'port': 'x' is not valid; give a whole number from 0 to 65535\n")
        self.assertEqual(self.refused({"top-p": 1.5}), ": key 'top-p': '1.5' is not valid; give a number from 0 to 1\n")

    def test_a_value_that_the_engine_refuses_is_named_by_its_key(self):
        self.assertRegex(self.refused({"kv-memory": "4KiB"}), r"^: key 'kv-memory': \S")
        self.assertRegex(self.refused({"disk": "/proc/none"}, "--disk-cap", "64MiB"), r"^: key 'disk': \S")

    def test_an_unreadable_file_is_named(self):
        for path, says in ((self.folder / "none", "No such file"), (self.folder, "not a regular file")):
            result = run("serve", "--config", path)
            self.assertEqual(result.returncode, 2)
            self.assertTrue(result.stderr.startswith(f"kvasir serve: --config: {path}: "), result.stderr)
            self.assertIn(says, result.stderr)
            self.assertNotIn("bytes", result.stderr)
        self.assertIn(": not valid JSON at line 2, byte", self.refused('{"port": 1,\n}'))

    def test_the_command_line_wins(self):
        path = self.write("serve.json", {"port": 1, "alias": ["from-file"], "temperature": 0.5, "no-page": True})
        with server("--config", path, "--alias", "from-line") as running:  # --port 0 too
            models = running.request("GET", "/v1/models")[2]
            self.assertEqual(models["data"][0]["id"], "from-line")
            self.assertNotIn("<html", str(running.request("GET", "/")[2]))

    def test_the_package_s_file_is_one(self):
        path = self.write("serve.json", (PACKAGING / "serve.json").read_text())
        with server("--config", path) as running:
            self.assertEqual(running.request("GET", "/ready")[0], 200)

    def test_a_second_server_of_the_same_configuration_says_what_is_taken(self):
        places = {"STATE_DIRECTORY": f"{self.folder}/state", "CACHE_DIRECTORY": f"{self.folder}/cache"}
        with NotifySocket() as manager, server("--disk", f"{self.folder}/kv", **places) as running:
            path = self.write("serve.json", {"port": running.port, "disk": f"{self.folder}/kv", "kv-memory": "16MiB"})
            second = run("serve", "--config", path, NOTIFY_SOCKET=manager.name, **places)
            self.assertIn(second.returncode, (1, 2), second.stderr)
            self.assertRegex(second.stderr, r"in use|another process|locked")
            self.assertIsNone(manager.next(0))
            self.assertEqual(running.request("GET", "/ready")[0], 200)


class Notify(WithFolder):
    def test_ready_reload_and_stop(self):
        key = json.loads(run("key", "new", "--json").stdout)
        keys = self.write("keys.json", {"tenants": {"red": {"keys": [key["entry"]]}}})
        for abstract in (True, False):
            with NotifySocket(abstract) as manager, server("--keys", keys, NOTIFY_SOCKET=manager.name) as running:
                self.assertEqual(manager.next(), {"READY": "1", "STATUS": "serving kvasir-demo"})
                self.assertEqual(running.request("GET", "/ready")[0], 200)
                before_us = time.monotonic_ns() // 1000
                running.process.send_signal(signal.SIGHUP)
                reloading = manager.next()
                self.assertEqual(set(reloading), {"RELOADING", "MONOTONIC_USEC"})
                self.assertEqual(reloading["RELOADING"], "1")
                self.assertTrue(before_us <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000)
                self.assertEqual(manager.next(), {"READY": "1"})
                running.process.send_signal(signal.SIGTERM)
                self.assertEqual(manager.next(), {"STOPPING": "1"})
                self.assertEqual(running.wait(), 0)
                self.assertIsNone(manager.next(0))

    def test_a_reload_without_keys_ends_nothing(self):
        with NotifySocket() as manager, server(NOTIFY_SOCKET=manager.name) as running:
            manager.until("READY")
            running.process.send_signal(signal.SIGHUP)
            manager.until("RELOADING")
            manager.until("READY")
            self.assertEqual(running.request("GET", "/ready")[0], 200)

    def test_the_watchdog_at_half_of_its_time(self):
        with NotifySocket() as manager, server(NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="1000000") as running:
            manager.until("READY")
            times_s = []
            for _ in range(3):
                self.assertEqual(manager.next(), {"WATCHDOG": "1"})
                times_s.append(manager.sent_s)
            self.assertGreater(times_s[2] - times_s[0], 0.9)  # never sooner than half a second each
            running.process.send_signal(signal.SIGSTOP)  # it hangs
            while manager.next(0):
                pass
            self.assertIsNone(manager.next(1.2))
            running.process.send_signal(signal.SIGCONT)
            manager.until("WATCHDOG")

    def test_no_watchdog_where_none_is_asked_for(self):
        with NotifySocket() as manager, server(NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="100000",
                                               WATCHDOG_PID="1") as running:
            manager.until("READY")
            self.assertIsNone(manager.next(0.3))
            self.assertEqual(running.request("GET", "/ready")[0], 200)


class Folders(WithFolder):
    def test_those_of_systemd_are_used(self):
        state, cache = self.folder / "state", self.folder / "cache"
        with self.default_disk(state, cache) as running:
            self.assertEqual(running.request("GET", "/v1/cache")[2]["cache"]["disk"]["folder"], str(cache / "kv"))
        self.assertEqual((state / "secret").stat().st_size, 32)
        self.assertEqual((state / "secret").stat().st_mode & 0o777, 0o600)
        self.assertTrue((cache / "kv").is_dir())

    def default_disk(self, state, cache):
        class Service(Server):
            without_flag = ("--disk-cap", "64MiB")
        Service.environment = {**CLEAN, "STATE_DIRECTORY": str(state), "CACHE_DIRECTORY": f"{cache}:/none",
                               "XDG_STATE_HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
        return Service()

    def test_flags_name_others(self):
        made = self.folder / "mine"
        self.assertEqual(run("key", "secret", made).returncode, 0)
        self.assertEqual((made.stat().st_size, made.stat().st_mode & 0o777), (32, 0o600))
        flags = ("--disk", self.folder / "kv", "--disk-cap", "64MiB", "--state-dir", self.folder / "other",
                 "--secret-file", made)
        with server(*flags, XDG_CACHE_HOME=str(self.folder / "cache")) as running:
            answer = running.request("POST", "/v1/sessions", {"messages": [{"role": "user", "content": "Hello"}]})
            self.assertEqual(answer[0], 201, answer)
        self.assertFalse((self.folder / "other/secret").exists())
        listed = run("sessions", "list", "--json", "--disk", self.folder / "kv", "--secret-file", made)
        self.assertEqual(json.loads(listed.stdout)["unreadable"], 0, listed.stderr)
        another = self.folder / "another"
        run("key", "secret", another)
        checked = run("fsck", "--disk", self.folder / "kv", "--secret-file", another)
        self.assertIn("not readable with this secret", checked.stdout + checked.stderr)

    def test_a_secret_that_is_missing_or_readable_by_others_is_refused(self):
        result = run("serve", "--secret-file", self.folder / "none")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'kvasir key secret FILE' makes one", result.stderr)
        path = self.write("open", "x" * 32)
        path.chmod(0o644)
        result = run("serve", "--secret-file", path)
        self.assertEqual(result.returncode, 1)
        self.assertIn("has mode 0644, so other users can read it", result.stderr)


class Credentials(WithFolder):
    def test_secret_and_keys_come_from_the_folder(self):
        self.write("credentials/kvasir_secret", "s" * 32)
        self.write("credentials/kvasir_api-keys", "first\nsecond\n")
        self.write("credentials/admin-key", "root\n")
        with server("--disk", self.folder / "kv", "--disk-cap", "64MiB", "--state-dir", self.folder / "state",
                    CREDENTIALS_DIRECTORY=str(self.folder / "credentials"),
                    XDG_CACHE_HOME=str(self.folder / "cache")) as running:
            for key, status in (("first", 200), ("second", 200), ("third", 401), (None, 401)):
                headers = {"x-api-key": key} if key else {}
                self.assertEqual(running.request("GET", "/v1/models", None, headers)[0], status, key)
            self.assertEqual(running.request("GET", "/metrics", None, {"x-api-key": "root"})[0], 200)
        self.assertFalse((self.folder / "state/secret").exists())

    def test_tenants_too(self):
        key = json.loads(run("key", "new", "--json").stdout)
        self.write("credentials/keys", {"tenants": {"red": {"keys": [key["entry"]]}}})
        with server(CREDENTIALS_DIRECTORY=str(self.folder / "credentials")) as running:
            self.assertEqual(running.request("GET", "/v1/models", None, {"x-api-key": key["key"]})[0], 200)
            self.assertEqual(running.request("GET", "/v1/models")[0], 401)


class Health(unittest.TestCase):
    def test_zero_or_one(self):
        with server() as running:
            said = run("health", "--url", running.url)
            self.assertEqual((said.returncode, said.stdout), (0, "ready\n"), said.stderr)
            self.assertEqual(run("health", "--url", f"{running.url}/v1").returncode, 0)
            localhost = run("health", "--url", f"http://localhost:{running.port}")
            self.assertEqual(localhost.returncode, 0, localhost.stderr)
        said = run("health", "--url", running.url)
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertIn(f"no Kvasir server answers at {running.url} (Connection refused)", said.stderr)

    def test_a_server_that_stops_is_not_ready(self):
        with server("--drain-delay-s", "60") as running:
            running.process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 60
            while (said := run("health", "--url", running.url)).returncode == 0 and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(said.returncode, 1)
            self.assertRegex(said.stderr, r"answers 503: \w")

    def test_a_server_that_says_little_or_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"

            def drip():
                client = listening.accept()[0]
                with client, contextlib.suppress(OSError):
                    while True:
                        client.sendall(b"H")
                        time.sleep(0.2)

            for scheme in ("http", "https"):
                thread = threading.Thread(target=drip, daemon=True)
                thread.start()
                begin = time.monotonic()
                said = run("health", "--url", url.replace("http", scheme))
                self.assertEqual(said.returncode, 1)
                if scheme == "http":
                    self.assertIn("no answer in time", said.stderr)
                    self.assertGreater(time.monotonic() - begin, 4.5)
            thread = threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True)
            thread.start()
            said = run("health", "--url", url)
            self.assertRegex(said.stderr, "it closed the connection|reset by peer|Broken pipe")

    def test_wrong_addresses(self):
        for url in ("", "ftp://localhost:1", "https://", "http://", "http://:80", "http://h:0", "http://h:x", "http://[::1",
                    "http://a b:1", "http://[::1]x:1", "http://h:1/x"):
            said = run("health", "--url", url)
            self.assertEqual(said.returncode, 2, url)
            self.assertIn("--url: ", said.stderr)


class Completions(WithFolder):
    def complete(self, *words):
        """What bash offers for the last word."""
        path = self.write("completions", run("completions", "bash").stdout)
        script = f'source {path}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvasir; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_bash(self):
        self.assertIn("serve", self.complete("kvasir", ""))
        self.assertEqual(self.complete("kvasir", "ser"), ["serve"])
        self.assertEqual(self.complete("kvasir", "serve", "--state"), ["--state-dir"])
        self.assertEqual(set(self.complete("kvasir", "serve", "--kv-m")), {"--kv-memory"})
        self.assertEqual(self.complete("kvasir", "serve", "--schedule", "fa"), ["fair"])
        self.assertEqual(self.complete("kvasir", "serve", "--port", ""), [])
        self.assertEqual(self.complete("kvasir", "completions", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.complete("kvasir", "key", "s"), ["secret"])
        (self.folder / "models").mkdir()
        self.assertEqual(self.complete("kvasir", "serve", "--disk", "mod"), ["models"])
        self.assertEqual(self.complete("kvasir", "serve", "--config", "comp"), ["completions"])
        for flag, values in (("--cache", "prefix sequence none"), ("--eviction", "lru s3fifo"), ("--kv-format", "f32 f16 bf16"),
                             ("--log-level", "error warning info debug"), ("--weights", "i8 i4 q8_0")):
            self.assertEqual(self.complete("kvasir", "serve", flag, "")[:len(values.split())], values.split(), flag)

    def cache(self, *names):
        """Writes a cache whose repository o/demo has these files."""
        commit = 40 * "0"
        model = self.folder / "models--o--demo"
        (model / "refs").mkdir(parents=True)
        (model / "refs/main").write_text(commit)
        (model / "snapshots" / commit).mkdir(parents=True)
        for name in names:
            (model / "snapshots" / commit / name).write_bytes(b"GGUF")

    def test_bash_offers_the_models_of_list(self):
        self.cache("m-Q8_0.gguf")
        with unittest.mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder)):
            for command in ("show", "chat", "run", "rm"):
                self.assertEqual(self.complete(BINARY, command, "o/"), ["o/demo:m-Q8_0.gguf"])
                self.assertEqual(self.complete(BINARY, command, "o/demo", ":"), ["m-Q8_0.gguf"])  # as bash divides a word
                self.assertEqual(self.complete(BINARY, command, "o/demo", ":", "m-Q"), ["m-Q8_0.gguf"])
            self.assertEqual(self.complete(BINARY, "rm", "x", "o/"), ["o/demo:m-Q8_0.gguf"])
            self.assertEqual(self.complete(BINARY, "show", "comp"), ["completions"])  # a file
            self.assertNotIn("o/demo:m-Q8_0.gguf", self.complete(BINARY, "pull", "o/"))

    def test_bash_does_not_expand_the_name_of_a_model(self):
        """The author of a repository chose the name of its file."""
        name = "a$(touch${IFS}ran)`touch${IFS}ran`.gguf"
        self.cache(name)
        with unittest.mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder)):
            for words in (("o/",), ("o/demo", ":"), ("o/demo", ":", "a$("), ("o/demo", ":", "a\\$\\(")):
                offered = self.complete(BINARY, "show", *words)
                self.assertEqual(len(offered), 1, words)
                read = subprocess.run(["bash", "-c", f"printf %s {offered[0]}"], capture_output=True, text=True, cwd=self.folder)
                self.assertEqual(read.stdout, f"o/demo:{name}" if len(words) == 1 else name)
                self.assertFalse((self.folder / "ran").exists(), words)

    def test_every_flag_of_every_page_is_offered(self):
        for command in re.findall(r"(?m)^  ([a-z]+) +\w", run("--help").stdout.split("Commands:")[1]):
            listed = set(re.findall(r"(?m)^  (--?[a-z0-9-]+)", run("help", command).stdout.split("Flags:")[1]))
            self.assertLessEqual(listed, set(self.complete("kvasir", command, "-")), command)

    def test_another_shell(self):
        for words in ((), ("tcsh",), ("bash", "zsh")):
            said = run("completions", *words)
            self.assertEqual((said.returncode, said.stdout), (2, ""), words)
            self.assertIn("bash, zsh, fish", said.stderr)


class Unit(WithFolder):
    def test_the_compose_file_names_what_exists(self):
        docker = ROOT / "docker"
        compose = yaml.safe_load((docker / "compose.yaml").read_text())
        services = compose["services"]
        self.assertEqual(set(services), {"kvasir", "prometheus", "grafana"})
        for place in sum((service["volumes"] for service in services.values()), []):
            source = place.split(":")[0]
            self.assertTrue((docker / source).exists() if source.startswith(".") else source in compose["volumes"], place)
        build = services["kvasir"]["build"]
        self.assertTrue((docker / build["context"] / build["dockerfile"]).exists())
        scraped = yaml.safe_load((docker / "prometheus.yml").read_text())["scrape_configs"][0]
        self.assertEqual(scraped["static_configs"][0]["targets"], ["kvasir:8080"])
        self.assertIn(f'job="{scraped["job_name"]}"', (ROOT / "share/prometheus/alerts.yml").read_text())
        plan = json.loads(run("plan", "--json", "--config", docker / "serve.json").stdout)
        self.assertEqual(services["kvasir"]["mem_limit"], "4g")
        self.assertLess((plan["total_bytes"] + plan["process_bytes"]) / 6 * 10, 4 << 30)

    def test_its_limit_is_made_from_the_plan(self):
        config = self.write("serve.json", {"kv-memory": "64MiB", "parallel": 2})
        plan = json.loads(run("plan", "--json", "--config", config).stdout)
        places = {**CLEAN, "KVASIR": BINARY, "RUNTIME_DIRECTORY": str(self.folder)}
        subprocess.run([PACKAGING / "memory-max", "plan", config], check=True, env=places)
        limit = int((self.folder / "bytes").read_text())
        need = plan["total_bytes"] + plan["process_bytes"]
        self.assertGreaterEqual(limit // 4096 * 4096 // 10 * 6, need)  # the server sees it as enough
        self.assertLess(limit, need * 1.75 + plan["load_peak_bytes"] + plan["mapped_bytes"])
        fake = self.write("systemctl", '#!/bin/sh\necho "$@" >"$RUNTIME_DIRECTORY/called"\n')
        fake.chmod(0o700)
        places["SYSTEMCTL"] = str(fake)
        subprocess.run([PACKAGING / "memory-max", "apply", "kvasir.service"], check=True, env=places)
        self.assertEqual((self.folder / "called").read_text(),
                         f"set-property --runtime kvasir.service MemoryMax={limit}\n")
        for wrong in ("\n", "12 34\n", "-1\n", "$(id)\n"):
            (self.folder / "bytes").write_text(wrong)
            done = subprocess.run([PACKAGING / "memory-max", "apply", "kvasir.service"], env=places, capture_output=True)
            self.assertNotEqual(done.returncode, 0, wrong)


if __name__ == "__main__":
    unittest.main()
