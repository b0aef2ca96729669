#!/usr/bin/env python3
"""Spans of requests at a real collector; a collector that hangs; broken headers.

    server_traces_test.py [KVASIR_BINARY] [unittest arguments]
"""

import base64
import concurrent.futures
import http.server
import json
import os
import socket
import tempfile
import threading
import time
import unittest

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from server_harness import Server, most_s, post_bytes

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {"prompt": list(range(5, 105)), "max_tokens": 8, "ignore_eos": True, "temperature": 0}


def parsed(body):
    """As opentelemetry-proto reads it. OTLP's JSON has ids in hex digits; protobuf's has base64."""
    message = json.loads(body)
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        assert span[key] == span[key].lower(), span
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(message, ExportTraceServiceRequest())


class Collector:
    """Keeps the spans that it gets; answers with a status."""

    def __init__(self, status=200):
        collector, self.bodies, self.paths, self.headers = self, [], [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                collector.paths.append(self.path)
                collector.headers.append(self.headers)
                collector.bodies.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.flags = ("--otlp-traces-endpoint", f"http://127.0.0.1:{self.server.server_port}/v1/traces")
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def spans(self):
        return [span for body in list(self.bodies) for resource in parsed(body).resource_spans
                for scope in resource.scope_spans for span in scope.spans]


def attributes(span):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def counted(server, outcome):
    return server.metric(f'kvasir_spans_total{{outcome="{outcome}"}}')


class WithEnvironment(Server):
    @classmethod
    def of(cls, variables):
        return type("Server", (cls,), {"environment": os.environ | variables})


class Traces(unittest.TestCase):
    def traced(self, bodies, headers=None, flags=(), together=False):
        """The answers, and the spans once all requests have sent theirs."""
        with Collector() as collector, Server(*collector.flags, *flags) as server:
            if together:
                with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
                    answers = list(pool.map(lambda body: server.post("/v1/completions", body, headers), bodies))
            else:
                answers = [server.post("/v1/completions", body, headers) for body in bodies]
            server.until("all spans came", lambda: sum(
                span.name == "llm_request" for span in collector.spans()) == len(bodies))
            self.assertEqual(set(collector.paths), {"/v1/traces"})
            spans = collector.spans()
            server.until("they are counted", lambda: counted(server, "sent") == len(spans))
            self.assertEqual((counted(server, "dropped"), counted(server, "failed")), (0, 0))
            return answers, spans

    def test_a_request_has_a_span_with_its_parts(self):
        answers, spans = self.traced([BODY, BODY], {"traceparent": f"00-{TRACE}-{PARENT}-01"}, ("--trace-sample", "0"))
        roots = [span for span in spans if span.name == "llm_request"]
        for answer, root in zip(answers, roots):
            self.assertEqual((root.trace_id.hex(), root.parent_span_id.hex()), (TRACE, PARENT))
            self.assertEqual((root.kind, root.status.code), (2, 1))
            said, receipt = attributes(root), answer["kvasir"]
            self.assertEqual(said["gen_ai.request.id"], answer["id"])
            self.assertEqual(said["gen_ai.response.model"], answer["model"])
            self.assertEqual((said["gen_ai.usage.prompt_tokens"], said["gen_ai.usage.completion_tokens"],
                              said["gen_ai.request.n"], said["gen_ai.request.max_tokens"]), (100, 8, 1, 8))
            self.assertAlmostEqual(said["gen_ai.latency.time_to_first_token"] * 1e3, receipt["ttft_ms"], delta=0.002)
            self.assertAlmostEqual((root.end_time_unix_nano - root.start_time_unix_nano) / 1e9,
                                   said["gen_ai.latency.e2e"], places=6)
            self.assertLess(abs(root.end_time_unix_nano / 1e9 - time.time()), 60)
            children = {span.name: span for span in spans if span.parent_span_id == root.span_id}
            self.assertEqual(set(children), {"queue", "match", "prefill", "decode"})
            for child in children.values():
                self.assertEqual(child.trace_id, root.trace_id)
                self.assertLessEqual(root.start_time_unix_nano, child.start_time_unix_nano)
                self.assertLessEqual(child.start_time_unix_nano, child.end_time_unix_nano)
                self.assertLessEqual(child.end_time_unix_nano, root.end_time_unix_nano)
            match = attributes(children["match"])
            self.assertEqual(match["kvasir.reused.pool"] + match["kvasir.reused.partial"],
                             answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            self.assertEqual(attributes(children["prefill"])["kvasir.computed"], receipt["computed"])
        self.assertEqual(attributes([s for s in spans if s.name == "match"][0])["kvasir.miss.reason"], "cold")
        self.assertEqual(len({span.span_id for span in spans}), len(spans))

    def test_a_restore_from_the_disk_has_a_span(self):
        with tempfile.TemporaryDirectory() as folder, Collector() as collector:
            flags = (*collector.flags, "--disk", folder + "/kv", "--disk-reserve", "0")
            with Server(*flags) as server:
                server.post("/v1/completions", BODY)
                server.post("/v1/cache/flush", {})
            collector.bodies.clear()
            with Server(*flags) as server:
                receipt = server.post("/v1/completions", BODY)["kvasir"]
                server.until("it came", lambda: any(s.name == "llm_request" for s in collector.spans()))
            (restore,) = [span for span in collector.spans() if span.name == "restore"]
            (root,) = [span for span in collector.spans() if span.name == "llm_request"]
            self.assertGreater(receipt["reused"]["disk"], 0)
            self.assertEqual(attributes(restore), {"kvasir.restored.disk": receipt["reused"]["disk"],
                                                   "kvasir.restored.remote": 0})
            self.assertEqual(restore.parent_span_id, root.span_id)
            self.assertLessEqual(root.start_time_unix_nano, restore.start_time_unix_nano)
            self.assertLessEqual(restore.end_time_unix_nano, root.end_time_unix_nano)

    def test_opentelemetrys_variables_are_honoured(self):
        with Collector() as collector:
            base = collector.flags[1].removesuffix("/v1/traces")
            for variables in ({"OTEL_EXPORTER_OTLP_ENDPOINT": base + "/"},
                              {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.flags[1],
                               "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}):
                collector.bodies.clear()
                with WithEnvironment.of(variables | {"OTEL_SERVICE_NAME": "chat-7"})() as server:
                    server.post("/v1/completions", BODY)
                    server.until("it came", lambda: collector.spans())
                resource = parsed(collector.bodies[0]).resource_spans[0].resource
                self.assertEqual(attributes(resource)["service.name"], "chat-7")
            self.assertEqual(set(collector.paths), {"/v1/traces"})
        with WithEnvironment.of({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1"})() as server:
            server.post("/v1/completions", BODY)
        self.assertTrue([line for line in server.log if "no traces are sent" in line])

    def test_what_goes_with_spans_and_where_none_go(self):
        with Collector() as collector:
            endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.flags[1].removesuffix("/v1/traces")}

            def served(variables):
                with WithEnvironment.of(endpoint | variables)() as server:
                    server.post("/v1/completions", BODY)
                return "".join(server.log)  # the end of a server waits for what is left

            log = served({"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20tok, x-a = b,broken",
                          "OTEL_RESOURCE_ATTRIBUTES": "team=blue%2Cgreen,service.name=mine",
                          "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
            self.assertEqual([collector.headers[0][k] for k in ("authorization", "x-a")], ["Bearer tok", "b"])
            resource = attributes(parsed(collector.bodies[0]).resource_spans[0].resource)
            self.assertEqual((resource["team"], resource["service.name"]), ("blue,green", "mine"))
            self.assertIn("traces are sent as http/json, not as grpc", log)
            self.assertIn("a part of a variable is left out variable=OTEL_EXPORTER_OTLP_HEADERS", log)
            self.assertNotRegex(log, "Bearer|20tok")
            collector.bodies.clear()
            self.assertNotIn("traces are", served({"OTEL_TRACES_EXPORTER": "none"}))
            self.assertIn("no traces are sent", served({"OTEL_TRACES_EXPORTER": "zipkin"}))
            self.assertEqual(collector.bodies, [])
            served({"OTEL_TRACES_EXPORTER": "console,otlp"})
            self.assertEqual(len(collector.spans()) > 0, True)

    def test_preemptions_and_evictions_have_spans(self):
        bodies = [{"prompt": [i] * 60, "max_tokens": 400, "ignore_eos": True} for i in range(5, 13)]
        for _ in range(5):  # on a busy machine the first may end before the last come
            answers, spans = self.traced(bodies, flags=("--kv-memory", "1200KiB", "--ctx-size", "512"), together=True)
            if any(answer["kvasir"]["preemptions"] for answer in answers):
                break
        named = lambda name: [span for span in spans if span.name == name]
        self.assertEqual(len(named("preempt")), sum(a["kvasir"]["preemptions"] for a in answers))
        self.assertGreater(len(named("resume")), 0)
        self.assertEqual(sum(attributes(span)["kvasir.recomputed"] for span in named("resume")),
                         sum(a["kvasir"]["recomputed"] for a in answers))
        self.assertGreater(len(named("evict")), 0)
        allocations = {span.span_id: span for span in named("allocate")}
        for span in named("evict"):
            self.assertIn(span.parent_span_id, allocations)
            said = attributes(span)
            self.assertEqual((said["kvasir.cause"], said["kvasir.of"]), ("capacity", "own"))
            self.assertLessEqual(said["kvasir.blocks"], said["kvasir.tokens"])
        per_request = {}
        for span in allocations.values():
            per_request[span.parent_span_id] = per_request.get(span.parent_span_id, 0) + 1
        self.assertLessEqual(max(per_request.values()), 64)

    def test_no_text_token_or_tenant_is_in_a_span(self):
        with Collector() as collector, Server(*collector.flags, "--api-key", "alpha", "--api-key", "beta") as server:
            for key in ("alpha", "beta"):
                status = server.request("POST", "/v1/completions", {"prompt": "secretword " * 9, "max_tokens": 4},
                                        {"x-api-key": key})[0]
                self.assertEqual(status, 200)
            server.until("both came", lambda: sum(s.name == "llm_request" for s in collector.spans()) == 2)
            text = b"".join(collector.bodies)
            for word in (b"secret", b"alpha", b"beta", b"key-"):
                self.assertNotIn(word, text)

    def test_a_cancelled_and_a_late_request_have_spans(self):
        with Collector() as collector, Server(*collector.flags) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as stream:
                stream.sendall(post_bytes("/v1/completions", BODY | {"max_tokens": 1800, "stream": True}))
                stream.recv(100)
            server.until("it came", lambda: any(s.name == "llm_request" for s in collector.spans()))
            self.assertTrue(attributes([s for s in collector.spans() if s.name == "llm_request"][0])["kvasir.cancelled"])
            late = server.request("POST", "/v1/completions", BODY | {"timeout_ms": 0})[0]
            if late == 504:
                server.until("it came", lambda: any(s.status.code == 2 for s in collector.spans()))

    def test_who_is_sampled(self):
        with Collector() as collector, Server(*collector.flags, "--trace-sample", "0") as server:
            broken = ("", "00", f"00-{TRACE}-{PARENT}", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01",
                      f"00-{TRACE.upper()}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-x", "\xff" * 55, "-" * 9000)
            for header in (*broken, f"00-{TRACE}-{PARENT}-00"):
                status = server.request("POST", "/v1/completions", BODY, {"traceparent": header.encode("latin-1")})[0]
                self.assertEqual(status, 200, header)
            twice = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                     2 * f"traceparent: 00-{TRACE}-{PARENT}-01\r\n".encode() + b"Content-Length: %d\r\n\r\n")
            data = json.dumps(BODY).encode()
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall(twice % len(data) + data)
                self.assertIn(b"200 OK", s.recv(4096))
            server.post("/v1/completions", BODY, {"traceparent": f"00-{TRACE}-{PARENT}-03"})  # the only one
            server.until("it came", lambda: len(collector.spans()) > 0)
            self.assertEqual(sum(span.name == "llm_request" for span in collector.spans()), 1)


class BadCollectors(unittest.TestCase):
    def test_one_that_hangs_delays_nobody(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
            with Server("--otlp-traces-endpoint", url) as server:
                one = {"prompt": [[i % 90 + 5] for i in range(200)], "max_tokens": 1}
                for _ in range(3):
                    server.post("/v1/completions", one)  # 200 requests of 5 spans
                self.assertEqual(counted(server, "sent"), 0)
                dropped = counted(server, "dropped")
                self.assertGreaterEqual(dropped, 3 * 200 * 5 - 2048 - 512)  # a queue, and what is being sent
                self.assertLess(dropped, 3 * 200 * 5)
                begin = time.monotonic()
                server.interrupt()
                self.assertEqual(server.wait(), 0)
                self.assertLess(time.monotonic() - begin, most_s(6))  # two seconds for the last spans

    def test_one_that_refuses_is_counted(self):
        with Collector(status=503) as collector, Server(*collector.flags) as server:
            server.post("/v1/completions", BODY)
            server.until("it failed", lambda: counted(server, "failed") == 5)
            server.post("/v1/completions", BODY)
            server.until("it failed again", lambda: counted(server, "failed") == 10)
            self.assertEqual(counted(server, "sent"), 0)
        self.assertEqual(len([line for line in server.log if "spans were not sent" in line]), 1)  # a minute

    def test_one_that_is_gone_is_counted(self):
        with socket.socket() as gone:
            gone.bind(("127.0.0.1", 0))  # and it does not listen
            with Server("--otlp-traces-endpoint", f"http://127.0.0.1:{gone.getsockname()[1]}") as server:
                server.post("/v1/completions", BODY)
                server.until("it failed", lambda: counted(server, "failed") == 5)

    def test_what_is_left_is_sent_at_the_end(self):
        with Collector() as collector, Server(*collector.flags) as server:
            server.post("/v1/completions", BODY)
            server.interrupt()
            self.assertEqual(server.wait(), 0)
            self.assertEqual(len(collector.spans()), 5)

    def test_flags(self):
        for flags in (("--otlp-traces-endpoint", ""), ("--otlp-traces-endpoint", "https://localhost/v1/traces"),
                      ("--otlp-traces-endpoint", "localhost:4318"), ("--otlp-traces-endpoint", "http://:4318"),
                      ("--otlp-traces-endpoint", "http://a b/"), ("--otlp-traces-endpoint", "http://h:port/"),
                      ("--otlp-traces-endpoint", "http://no.such.host.invalid/v1/traces"),
                      ("--otlp-traces-endpoint", "http://localhost", "--trace-sample", "2"),
                      ("--otlp-traces-endpoint", "http://localhost", "--trace-sample", "nan")):
            with self.assertRaisesRegex(RuntimeError, "--otlp-traces-endpoint|--trace-sample", msg=flags):
                Server(*flags).stop()


if __name__ == "__main__":
    unittest.main()
