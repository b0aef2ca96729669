"""A browser for the page of `kvasir serve`, and a small server that answers it with what a test says."""

import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

from server_harness import ROOT

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    expect = sync_playwright = None

CHROMIUM = shutil.which("chromium")
SHOTS = ROOT / "build" / "screenshots"
FILES = ROOT / "src/server/page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
AXE = "axe-core@4.10.3"


def policy():
    """The page's Content-Security-Policy, as the server sends it."""
    text = (ROOT / "src/server/page_routes.cc").read_text()
    return "".join(re.findall(r'"([^"]*)"', re.search(r'"Content-Security-Policy",(.*?)\}', text, re.S)[1]))


def axe_source():
    """The text of axe-core, which npm brings at the first run; None: it could not."""
    home = ROOT / "build/clients/axe"
    file = home / "node_modules/axe-core/axe.min.js"
    if not file.exists() and shutil.which("npm"):
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", home, "--no-audit", "--no-fund", "--silent", AXE], check=False)
    return file.read_text() if file.exists() else None


def receipt(prompt=100, computed=20):
    return {"prompt_tokens": prompt, "computed": computed, "ttft_ms": 12.5, "tpot_ms": 4.0, "miss": None,
            "reused": {"pool": prompt - computed, "partial": 0, "disk": 0, "remote": 0}}


class FakeServer:
    """Serves the page's files as they are in src, and one conversation whose answers are `deltas` of a stream."""

    def __init__(self):
        self.sessions = {}     # id: {"messages": [...], "origin", ...}
        self.deltas = []       # of the next answer
        self.pause_s = 0       # between two of them
        self.events_at_once = 1
        self.failure = None    # (status, message) of the next generate
        self.tiers = {"remote": None, "disk": {  # as GET /v1/cache says it
            "state": "on", "reason": None, "folder": "/var/cache/kv", "cap_bytes": 20 << 30, "blocks": 1000,
            "used_bytes": 3 << 30, "written_today_bytes": 5 << 20}}
        self.headers = {"Content-Security-Policy": policy(), "X-Content-Type-Options": "nosniff"}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def send(self, body, media_type="application/json", status=200):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", media_type)
                self.send_header("Content-Length", str(len(data)))
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                outer.get(self)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with contextlib.suppress(ConnectionError):  # a page that stops an answer hangs up
                    outer.post(self, json.loads(body or b"{}"))

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self):
        self.http.shutdown()
        self.http.server_close()

    def add_session(self, messages, origin="page", title=None):
        made = f"sess_{len(self.sessions):032x}"
        self.sessions[made] = {"id": made, "created": 1764340000 + len(self.sessions), "origin": origin, "title": title,
                               "messages": [{"index": i, **m} for i, m in enumerate(messages)]}
        return made

    def get(self, handler):
        path = handler.path.split("?")[0]
        if path == "/v1/models":
            return handler.send({"data": [{"id": "a-model"}]})
        if path == "/v1/sessions":
            data = [{**s, "messages": len(s["messages"])} for s in reversed(self.sessions.values())]
            return handler.send({"data": data, "has_more": False})
        if path.startswith("/v1/sessions/") and path.split("/")[3] in self.sessions:
            return handler.send(self.sessions[path.split("/")[3]])
        if path == "/v1/cache/sequences":
            return handler.send({"data": []})
        if path == "/v1/cache/prefixes":
            return handler.send({"data": self.prefixes(), "has_more": False})
        if path == "/v1/cache":
            return handler.send(self.cache())
        file = FILES / ("page.html" if path == "/" else path[1:])
        if path.count("/") == 1 and file.exists():
            return handler.send(file.read_bytes(), TYPES[file.suffix])
        return handler.send({"error": {"message": "not found"}}, status=404)

    def prefixes(self):
        return [{"index": 0, "parent": None, "tokens": 48, "hits": 12, "used_blocks": 1, "text": "<|system|>You are kind."},
                {"index": 1, "parent": 0, "tokens": 16, "hits": 3, "used_blocks": 0, "text": "<|user|>Where is Oslo?"},
                {"index": 2, "parent": 0, "tokens": 32, "hits": 1, "used_blocks": 0, "text": None}]

    def cache(self):
        minutes = [[(i * 37) % 400, (i * 37) % 400 * i // 60] for i in range(60)]
        prompt, reused = (sum(m[k] for m in minutes) for k in (0, 1))
        return {"block_bytes": 16384, "total_bytes": 90 << 20, "process_bytes": 10 << 20, "cache": {
            "blocks": {"pinned": 12, "idle": 340, "free": 672, "evicted": 1234}, "tokens": {"cached": 5632},
            "last_hour": {"answers": 61, "prompt": prompt, "computed": prompt - reused, "reused_pool": reused,
                          "reused_partial": 0, "reused_disk": 0, "reused_remote": 0, "minutes": minutes},
            **self.tiers}}

    def post(self, handler, body):
        path = handler.path
        if path == "/v1/sessions":
            made = self.add_session([], body.get("origin", "api"))
            return handler.send(self.sessions[made], status=201)
        if path.endswith("/generate"):
            session = self.sessions.get(path.split("/")[3])
            if session is None:
                return handler.send({"error": {"message": "id: no session has it"}}, status=404)
            return self.generate(handler, session, body)
        return handler.send({"error": {"message": "not found"}}, status=404)

    def generate(self, handler, session, body):
        if self.failure:
            status, message = self.failure
            return handler.send({"error": {"message": message}}, status=status)
        messages = session["messages"]
        for one in body.get("messages", []):
            messages.append({"index": len(messages), **one})
            session["title"] = session["title"] or one["content"][:60]
        said = {"role": "assistant", "content": ""}
        for delta in self.deltas:
            said["content"] += delta.get("content", "")
            if "reasoning_content" in delta:
                said["reasoning_content"] = said.get("reasoning_content", "") + delta["reasoning_content"]
        messages.append({"index": len(messages), **said})
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

        def write(text):
            data = text.encode()
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            handler.wfile.flush()

        events = [json.dumps({"choices": [{"delta": delta}]}) for delta in self.deltas]
        events.append(json.dumps({"choices": [], "kvasir": receipt(), "session": {"index": len(messages) - 1}}))
        start = time.monotonic()
        for i in range(0, len(events), self.events_at_once):
            write("".join(f"data: {event}\n\n" for event in events[i:i + self.events_at_once]))
            time.sleep(max(0, start + (i // self.events_at_once + 1) * self.pause_s - time.monotonic()))
        write("data: [DONE]\n\n")
        handler.wfile.write(b"0\r\n\r\n")
        return None


class BrowserTest(unittest.TestCase):
    """Pages in Chromium."""

    @classmethod
    def setUpClass(cls):
        expect.set_options(timeout=60_000)  # what is waited for comes within it on a busy machine too
        cls.playwright = sync_playwright().start()
        cls.addClassCleanup(cls.playwright.stop)
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)
        SHOTS.mkdir(parents=True, exist_ok=True)

    def open(self, url, path="/", **options):
        """A page without messages on its console, and without requests to elsewhere."""
        context = self.browser.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(60_000)
        self.said = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.assertTrue(request.url.startswith(url), request.url))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(url + path)
        expect(page.locator("#model")).not_to_be_empty()
        return page

    def ask(self, page, text):
        answers = page.locator("article.assistant .actions").count()
        page.locator("#text").fill(text)
        page.locator("#text").press("Enter")
        self.until_answered(page, answers + 1)

    def until_answered(self, page, answers=1):
        expect(page.locator("article.assistant .actions")).to_have_count(answers)


def main():
    missing = [name for name, found in (("playwright", sync_playwright), ("chromium", CHROMIUM)) if found is None]
    if missing:
        if os.environ.get("CI"):
            raise FileNotFoundError(f"this test needs {', '.join(missing)}")
        print(f"skipped: needs {', '.join(missing)}")
        sys.exit(77)
    unittest.main()
