"""Programs of other projects, as they are installed from PyPI, for tests and measurements."""

import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from redis_server import free_port

WAIT_S = 300
SGLANG_ROUTER = "sglang-router==0.3.2"


def install(home, packages):
    """Makes an environment of Python with these packages, unless it is there. False: pip could not."""
    wanted = "\n".join(packages)
    if (home / "installed").exists() and (home / "installed").read_text() == wanted:
        return True
    for command in (["/usr/bin/python3", "-m", "venv", "--clear", home],
                    [home / "bin/pip", "install", "-q", "--no-input", *packages]):
        if subprocess.run(command, check=False).returncode:
            return False
    (home / "installed").write_text(wanted)
    return True


class Program:
    """One of them on a free port; its output is in a file."""

    def __init__(self, *command, ready):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=self.output,
                                        stderr=subprocess.STDOUT)
        self.until(lambda: self.get(ready) is not None)

    def until(self, condition):
        """Waits for a state that must come."""
        end = time.monotonic() + WAIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                said = self.said()
                self.stop()
                raise AssertionError(said)
            time.sleep(0.1)

    def said(self):
        self.output.seek(0)
        return self.output.read()

    def get(self, path):
        """The answer's text; None: it is not there, or refuses."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.loads(answer.read())

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()


class SglangRouter(Program):
    """Sends requests to these servers in turn. It takes prompts as text, and no ids."""

    def __init__(self, home, urls, *flags):
        super().__init__(home / "bin/sglang-router", "launch", "--host", "127.0.0.1", "--prometheus-host", "127.0.0.1",
                         "--prometheus-port", str(free_port()), "--policy", "round_robin", "--worker-urls", *urls,
                         *flags, ready="/health")
        self.until(lambda: self.healthy() == set(urls))

    def healthy(self):
        """The servers that it sends requests to."""
        workers = json.loads(self.get("/workers") or '{"workers": []}')["workers"]
        return {worker["url"] for worker in workers if worker["is_healthy"]}
