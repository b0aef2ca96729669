"""Each expression of share/grafana and share/prometheus, run by a real Prometheus that scrapes a server under load, and
each alert in a fault that is made.
"""
import contextlib
import errno
import http.client
import itertools
import json
import math
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
import urllib.parse
import urllib.request

from certificates import Authority
from fault_shim import FOREVER, LEAK, SHIM, Faults, needs_shim
from needs import needs_programs
from server_harness import BINARY, ROOT, WAIT_S, Server, listening_port

DASHBOARD = json.loads((ROOT / "share/grafana/kvasir.json").read_text())
ALERTS = ROOT / "share/prometheus/alerts.yml"
ADMIN = "operator-key"
# Series of alerts that the server here does not have, and the tests whose servers have them.
ELSEWHERE = {"kvasir_tls_certificate_expiration_timestamp_seconds": "server_tls_test.py"}  # of --tls-cert


def silent_port(test):
    """A port at which no program listens, as long as the test runs."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    test.addClassCleanup(bound.close)
    return bound.getsockname()[1]


def panels():
    """The expressions of the dashboard, each with its panel's title."""
    return [(panel["title"], target["expr"].replace("$__rate_interval", "10s").replace("$job", ".*"))
            for panel in DASHBOARD["panels"] if panel["type"] != "row" for target in panel["targets"]]


def series_in(expression):
    """The series that a PromQL expression reads, each with its {matchers}."""
    bare = re.sub(r"\b(by|on|ignoring) *\([^)]*\)|\b(group_left|and|or|unless)\b|\[[^]]*\]", " ", expression)
    return [match[0] for match in re.finditer(r"\b[a-zA-Z_][\w:]*\b(?! *\()(\{[^}]*\})?", bare)]


class Prometheus:
    """Debian's, which scrapes servers (URLs) each second; alerts wait for nothing."""

    def __init__(self, home, *servers):
        rules = re.sub(r"\[1?[05]m\]", "[10s]", re.sub(r"(?m)^ *for: .*\n", "", ALERTS.read_text()))
        (home / "alerts.yml").write_text(rules)
        (home / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["alerts.yml"],
            "scrape_configs": [{"job_name": "kvasir", "authorization": {"credentials": ADMIN},
                                "tls_config": {"insecure_skip_verify": True},
                                "static_configs": [{"targets": [url.netloc], "labels": {"__scheme__": url.scheme}}
                                                   for url in map(urllib.parse.urlsplit, servers)]}]}))
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
             "--web.listen-address=127.0.0.1:0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        self.port = self.wait_for(lambda: listening_port(self.process.pid))

    def get(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None  # it listens, and reads its data
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        except OSError:
            return None  # it starts

    def values(self, expression):
        data = self.get("query", query=expression)
        return data["result"] if data else []

    def numbers(self, expression):
        """The values, once there are some and none is a 0/0 or x/0."""
        values = self.values(expression)
        return values if all(math.isfinite(float(one["value"][1])) for one in values) else []

    def rules(self):
        """All rules, once each was evaluated."""
        data = self.get("rules")
        rules = [rule for group in data["groups"] for rule in group["rules"]] if data else []
        return [] if any(rule["health"] == "unknown" for rule in rules) else rules

    def fired(self, alert, server, cause=".*"):
        """Whether it fires for the server, or did."""
        return bool(self.values(f'count_over_time(ALERTS{{alertname="{alert}",alertstate="firing",cause=~"{cause}",'
                                f'instance="127.0.0.1:{server.port}"}}[1h])'))

    def wait_for(self, what):
        end = time.monotonic() + WAIT_S
        while not (found := what()):
            if time.monotonic() > end:
                raise AssertionError("".join(self.log[-5:]) or "Prometheus has no such value")
            time.sleep(0.2)
        return found

    def stop(self):
        self.process.terminate()
        self.process.wait(WAIT_S)
        self.process.stderr.close()


@needs_programs("prometheus", "promtool")
class Dashboards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="dashboards-"))
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        keys = cls.home / "keys"
        keys.write_text("alpha\nbeta\n")
        cache = ("--cache-dir", str(cls.home / "cache"))
        # The limit that the bandwidth used is a share of: with so small a cache the server does not measure it itself.
        subprocess.run([BINARY, "bench", "-p", "0", "-n", "1", "--repeats", "1", "--speed-only", *cache], check=True,
                       stdout=subprocess.DEVNULL, timeout=WAIT_S)
        cls.server = Server(*cache, "--api-key-file", str(keys), "--admin-key", ADMIN, "--disk", str(cls.home / "kv"),
                            "--kv-memory", "1MiB", "--max-queued", "2", "--parallel", "2", "--remote",
                            f"redis://127.0.0.1:{silent_port(cls)}", "--fleet-secret", cls.fleet_secret(), "--disk-reserve", "0")
        cls.addClassCleanup(cls.server.stop)
        cls.prometheus = Prometheus(cls.home, cls.server.url)
        cls.addClassCleanup(cls.prometheus.stop)
        cls.stopped = threading.Event()
        cls.clients = [threading.Thread(target=cls.load, args=(i,)) for i in range(6)]
        for client in cls.clients:
            client.start()
        cls.addClassCleanup(cls.stop_load)
        cls.prometheus.wait_for(lambda: cls.prometheus.values("rate(vllm:generation_tokens_total[10s]) > 0"))

    @classmethod
    def fleet_secret(cls):
        path = cls.home / "fleet"
        path.write_bytes(bytes(range(32)))
        path.chmod(0o600)
        return str(path)

    @classmethod
    def load(cls, number):
        """Prompts that repeat and prompts that are new, of two tenants, more at once than the queue takes."""
        turn = 0
        while not cls.stopped.is_set():
            turn += 1
            head = [5 + number % 3] * 40 + [(turn // 3 * 7 + k) % 900 + 5 for k in range(400)]
            cls.server.request("POST", "/v1/completions", {"prompt": head, "max_tokens": 12, "ignore_eos": True},
                               {"Authorization": f"Bearer {'alpha' if number % 2 else 'beta'}"})

    @classmethod
    def stop_load(cls):
        cls.stopped.set()
        for client in cls.clients:
            client.join()

    def test_each_panel_has_data(self):
        shown = panels()
        self.assertGreater(len({title for title, _ in shown}), 25)
        for title, expression in shown:
            with self.subTest(panel=title, expression=expression):
                self.prometheus.wait_for(lambda: self.prometheus.numbers(expression))

    def test_rules_are_evaluated_and_each_series_is_one_of_the_server(self):
        rules = self.prometheus.wait_for(self.prometheus.rules)
        self.assertEqual({rule["name"]: rule["health"] for rule in rules},
                         dict.fromkeys(re.findall(r"alert: (\w+)", ALERTS.read_text()), "ok"))
        for place, expression in [*((rule["name"], rule["query"]) for rule in rules), *panels()]:
            names = series_in(expression)
            self.assertTrue(names, expression)
            for name in names:
                with self.subTest(place, series=name):
                    if name in ELSEWHERE:
                        self.assertTrue(f'"{name}"' in (ROOT / "tests" / ELSEWHERE[name]).read_text())
                    else:
                        self.prometheus.wait_for(lambda: self.prometheus.values(name))

    def test_the_bandwidth_used_is_that_of_the_load(self):
        limit = float(self.prometheus.wait_for(lambda: self.prometheus.values(
            "kvasir_read_limit_bytes_per_second"))[0]["value"][1])
        self.assertGreater(limit, 1e8)
        kept = (self.home / "cache/limits").read_text().split("\n")[2].split()
        self.assertEqual(limit, float(kept[1]))  # as bench measured it
        used = float(self.prometheus.wait_for(lambda: self.prometheus.values("kvasir_mbu_ratio > 0"))[0]["value"][1])
        self.assertLess(used, 100)  # it may be above 1: the small model stays in the CPU's caches

    def test_the_dashboard_is_of_grafanas_schema(self):
        self.assertEqual((DASHBOARD["schemaVersion"], DASHBOARD["uid"], DASHBOARD["title"]), (39, "kvasir", "Kvasir"))
        ids, places = set(), []
        for panel in DASHBOARD["panels"]:
            self.assertNotIn(panel["id"], ids)
            ids.add(panel["id"])
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            for other in places:  # no panel lies on another one
                self.assertTrue(place["x"] >= other["x"] + other["w"] or other["x"] >= place["x"] + place["w"] or
                                place["y"] >= other["y"] + other["h"] or other["y"] >= place["y"] + place["h"], panel["title"])
            places.append(place)
            if panel["type"] == "row":
                continue
            self.assertEqual(panel["type"], "timeseries")
            self.assertTrue(panel["description"].endswith("."))
            self.assertEqual({target["refId"] for target in panel["targets"]},
                             set("ABCDEF"[:len(panel["targets"])]))
            for target in panel["targets"]:
                self.assertIn('{job=~"$job"', target["expr"])
        self.assertEqual([variable["name"] for variable in DASHBOARD["templating"]["list"]], ["datasource", "job"])

    def test_a_tier_that_is_off_and_a_full_queue_fire_alerts(self):
        for name in ("KvasirTierOff", "KvasirRefusesRequests"):  # no Redis is there, and two may wait
            self.prometheus.wait_for(lambda: self.prometheus.fired(name, self.server))
        self.assertEqual(self.prometheus.values('ALERTS{alertname=~"KvasirDown|KvasirPassesItsPlan"}'), [])

    def test_every_alert_fires_on_its_series_and_not_before(self):
        """promtool: counters in steps of 1 a minute and the like, for each rule; class FaultsFireAlerts is real."""
        series = {  # expression's series: values that fire, values that do not
            "KvasirDown": (['up{job="kvasir",instance="a"}'], ["0x40"], ["1x40"]),
            "KvasirTierOff": (['kvasir_tier_on{tier="disk",instance="a"}'], ["0x40"], ["1x40"]),
            "KvasirTierDropsBlocks": (['kvasir_tier_dropped_blocks_total{tier="disk",cause="x",instance="a"}'],
                                      ["0+120x40"], ["0+30x40"]),
            "KvasirRefusesRequests": (['kvasir_rejected_requests_total{reason="x",instance="a"}',
                                       'kvasir_requests_total{outcome="ok",instance="a"}'],
                                      ["0+10x40", "0+100x40"], ["0+1x40", "0+100x40"]),
            "KvasirWaitsLong": (['kvasir_oldest_wait_seconds{instance="a"}'], ["31x40"], ["29x40"]),
            "KvasirFirstTokenIsSlow": ([f'vllm:time_to_first_token_seconds_bucket{{le="{le}",instance="a"}}'
                                        for le in ("20", "40", "+Inf")],
                                       ["0+80x40", "0+100x40", "0+100x40"], ["0+99x40", "0+100x40", "0+100x40"]),
            "KvasirPoolIsTooSmall": (['kvasir_recomputed_tokens_total{cause="evicted",instance="a"}',
                                      'vllm:prompt_tokens_total{instance="a"}'],
                                     ["0+30x40", "0+100x40"], ["0+10x40", "0+100x40"]),
            "KvasirPreempts": (['kvasir_preemptions_total{cause="x",instance="a"}'], ["0+7x40"], ["0+5x40"]),
            "KvasirLineCostsTurns": (['kvasir_volatile_tokens_total{instance="a"}',
                                      'vllm:prompt_tokens_total{instance="a"}'],
                                     ["0+40x40", "0+100x40"], ["0+20x40", "0+100x40"]),
            "KvasirPassesItsPlan": (['process_resident_memory_bytes{instance="a"}',
                                     'kvasir_planned_memory_bytes{instance="a"}'], ["101x40", "100x40"],
                                    ["100x40", "100x40"]),
            "KvasirCertificateEndsSoon": (['kvasir_tls_certificate_expiration_timestamp_seconds{instance="a"}'],
                                          ["1209660x40"], ["1212000x40"]),  # 14 days are 1209600 s, and it is 2340 s
            "KvasirNumbersNotFinite": (['vllm:corrupted_requests_total{instance="a"}'], ["0+1x40"], ["3x40"])}
        self.assertEqual(set(re.findall(r"alert: (\w+)", ALERTS.read_text())), set(series))
        for fires, which in ((True, 1), (False, 2)):
            for name, row in series.items():
                with self.subTest(name, fires=fires), tempfile.TemporaryDirectory() as home:
                    values = [{"series": one, "values": value.replace("x40", "+0x40") if "+" not in value else value}
                              for one, value in zip(row[0], row[which])]
                    path = pathlib.Path(home) / "test.yml"
                    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [{
                        "interval": "1m", "input_series": values, "promql_expr_test": [{
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": "39m",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}]}]}))
                    result = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


FAULTS_NEED = ("prometheus", "openssl")  # programs of FaultsFireAlerts


def setUpModule():
    """A server that stands still in the midst of its work, as a virtual machine does that is moved. It begins before the
    other tests, which fill its 33 s. FaultsFireAlerts alone asks it."""
    global frozen, thaw
    if not SHIM or not all(map(shutil.which, FAULTS_NEED)):
        return
    frozen = Server("--parallel", "1")
    many = {"prompt": [[5 + k, 6, 7] for k in range(250)], "max_tokens": 900, "ignore_eos": True}
    client = threading.Thread(target=ask, args=(frozen, "completions", many))
    client.start()
    unittest.addModuleCleanup(client.join)
    unittest.addModuleCleanup(frozen.stop)
    unittest.addModuleCleanup(frozen.process.kill)  # its answers would take half a minute
    frozen.until("requests wait", lambda: frozen.metric("kvasir_oldest_wait_seconds") > 0)
    frozen.process.send_signal(signal.SIGSTOP)
    thaw = threading.Timer(33, frozen.process.send_signal, [signal.SIGCONT])
    thaw.start()
    unittest.addModuleCleanup(thaw.cancel)


def ask(server, path, body):
    """The HTTP status; 0: the server ended first."""
    try:
        return server.request("POST", f"/v1/{path}", body, {"Authorization": f"Bearer {ADMIN}"})[0]
    except (OSError, http.client.HTTPException):
        return 0


@needs_programs(*FAULTS_NEED)
@needs_shim
class FaultsFireAlerts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="alerts-"))
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        certificate, key = Authority(cls.home).sign("server", ends_h=24 * 13)
        cls.small, cls.faults = cls.start("--tls-cert", certificate, "--tls-key", key, "--kv-memory", "1MiB")
        cls.small.tls = ssl._create_unverified_context()
        cls.stored, cls.disk_faults = cls.start("--disk", str(cls.home / "kv"), "--disk-reserve", "0")
        cls.damaged = cls.start("--model", str(cls.damaged_model()))[0]
        cls.prometheus = Prometheus(cls.home, *(one.url for one in (cls.small, cls.stored, cls.damaged, frozen)))
        cls.addClassCleanup(cls.prometheus.stop)
        cls.prometheus.wait_for(lambda: len(cls.prometheus.values("up == 1")) >= 3)

    @classmethod
    def damaged_model(cls):
        """The bundled model with numbers whose sums are infinite."""
        shutil.copytree(ROOT / "models/kvasir-demo", cls.home / "damaged")
        weights = bytearray((cls.home / "damaged/model.safetensors").read_bytes())
        begin = 8 + int.from_bytes(weights[:8], "little")
        tensor = json.loads(weights[8:begin])["model.layers.0.self_attn.o_proj.weight"]
        begin, end = (begin + offset for offset in tensor["data_offsets"])
        weights[begin:end] = b"\x7f\x7f" * ((end - begin) // 2)  # bf16: the largest number
        (cls.home / "damaged/model.safetensors").write_bytes(weights)
        return cls.home / "damaged"

    @classmethod
    def start(cls, *flags):
        """A server, and what makes its calls fail."""
        faults = Faults()
        cls.addClassCleanup(faults.close)
        server = type("Shimmed", (Server,), {"environment": faults.environment})(
            "--admin-key", ADMIN, "--request-memory", "16MiB", "--session-memory", "0", "--grammar-memory", "0", *flags)
        cls.addClassCleanup(server.stop)
        return server, faults

    def comes(self, alert, server, **labels):
        self.prometheus.wait_for(lambda: self.prometheus.fired(alert, server, **labels))

    @contextlib.contextmanager
    def asking(self, server, path, body, clients=1):
        """Clients that send body(n), n from 0 on."""
        stopped, numbers = threading.Event(), itertools.count()

        def run():
            while not stopped.is_set():
                ask(server, path, body(next(numbers)))

        threads = [threading.Thread(target=run) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            for thread in threads:
                thread.join()

    def test_a_certificate_that_ends(self):
        self.comes("KvasirCertificateEndsSoon", self.small)
        self.assertFalse(self.prometheus.fired("KvasirCertificateEndsSoon", self.stored))

    def test_a_disk_without_room(self):
        with self.asking(self.stored, "completions", lambda n: {"prompt": [5 + n] * 500, "max_tokens": 1}):
            self.prometheus.wait_for(lambda: self.prometheus.values("kvasir_tier_written_bytes_total > 0"))
            self.assertFalse(self.prometheus.fired("KvasirTierOff", self.stored))
            self.disk_faults.arm("write", errno.ENOSPC, 1, FOREVER)
            self.comes("KvasirTierDropsBlocks", self.stored, cause="failed")

    def test_a_leak(self):
        self.assertFalse(self.prometheus.fired("KvasirPassesItsPlan", self.small))
        self.faults.arm("malloc", LEAK, 1, 512)  # as many MiB
        self.comes("KvasirPassesItsPlan", self.small)

    def test_a_line_that_changes(self):
        rules = "".join(f"Rule {k}: keep the key in drawer {k}.\n" for k in range(20))

        def chat(n):
            return {"max_tokens": 1, "messages": [{"role": "system", "content": f"Session {n}\n{rules}"},
                                                  {"role": "user", "content": "Hello"}]}

        with self.asking(self.stored, "chat/completions", chat):
            self.comes("KvasirLineCostsTurns", self.stored)

    def test_a_pool_that_is_too_small_for_its_prompts(self):
        with self.asking(self.small, "completions", lambda n: {"prompt": [5 + n % 3] * 400, "max_tokens": 1}):
            self.comes("KvasirPoolIsTooSmall", self.small)

    def test_answers_that_give_way_to_others(self):
        def long(n):
            return {"prompt": [5 + n, 6, 7], "max_tokens": 300, "ignore_eos": True, "priority": n % 3}

        with self.asking(self.small, "completions", long, clients=8):
            self.comes("KvasirPreempts", self.small)

    def test_damaged_weights(self):
        self.prometheus.wait_for(lambda: self.prometheus.values("vllm:corrupted_requests_total == 0"))
        self.assertEqual(ask(self.damaged, "completions", {"prompt": [5, 6, 7]}), 500)
        self.comes("KvasirNumbersNotFinite", self.damaged)

    def test_the_machine_stands_still(self):
        self.comes("KvasirDown", frozen)
        thaw.join()
        for name in ("KvasirWaitsLong", "KvasirFirstTokenIsSlow"):
            self.comes(name, frozen)


if __name__ == "__main__":
    unittest.main()
