"""Shared by the tests of the commands: running kvasir and checking how it ended."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("KVASIR_BINARY", str(ROOT / "build/release/kvasir"))
GOLDEN = json.loads((ROOT / "models/kvasir-demo/golden.json").read_text())
SMALL = ["--kv-memory", "16MiB"]
GOLDENS = pathlib.Path(os.environ.get("KVASIR_SHARED", ROOT.parent / "shared")) / "goldens"


def kvasir(*arguments, stdin="", environment=None, timeout=120):
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True,
                          text=True, timeout=timeout,
                          env={**os.environ, **(environment or {})})


def ids_text(ids):
    return ",".join(map(str, ids))


@contextlib.contextmanager
def server(*arguments):
    """kvasir serve on a free port: yields (url, process); process.said: its first lines."""
    process = subprocess.Popen([BINARY, "serve", "--port", "0", "--disk", "none", *arguments],
                               stderr=subprocess.PIPE, text=True)
    try:
        url, said = None, []
        process.said = said
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                url = found.group(1)
                break
        assert url, "serve ended: " + "".join(said)
        yield url, process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def post(url, path, body):
    """Status and answer."""
    try:
        with urllib.request.urlopen(url + path, data=json.dumps(body).encode(), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get_json(url, headers=None):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}),
                                timeout=30) as response:
        return json.load(response)


class CliTest(unittest.TestCase):
    def ok(self, *arguments, **options):
        result = kvasir(*arguments, **options)
        self.assertEqual(result.returncode, 0, f"{arguments}: {result.stderr}")
        said = re.sub(r"kvasir: warning: --threads \d+ is more than .*\n", "", result.stderr)  # on a small machine
        self.assertEqual(said, "", "progress is for terminals")
        return result.stdout

    def ok_json(self, *arguments, **options):
        return json.loads(self.ok(*arguments, **options))

    def wrong(self, *arguments, says=(), **options):
        """Exit 2, nothing on stdout, and one line that holds all of `says`."""
        result = kvasir(*arguments, **options)
        self.assertEqual(result.returncode, 2, f"{arguments}: {result.stdout} {result.stderr}")
        self.assertEqual(result.stdout, "", arguments)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("kvasir"), result.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)


def golden(name):
    """A file of ../shared/goldens; skips the test where it is missing, but not in CI."""
    if not (GOLDENS / name).exists():
        if os.environ.get("CI"):
            raise AssertionError(f"needs {GOLDENS / name}")
        raise unittest.SkipTest(f"needs {GOLDENS / name}")
    return json.loads((GOLDENS / name).read_text())


class ServerTest(CliTest):
    """One server for all tests of a class. FLAGS: its own; PROMPT and COMPLETION: of `complete`."""
    FLAGS, PROMPT, COMPLETION = [], [], {}

    @classmethod
    def setUpClass(cls):
        cls.context = server(*cls.FLAGS)
        cls.url, _ = cls.context.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)

    def ask(self, path, status=200, **body):
        got, answer = post(self.url, path, body)
        self.assertEqual(got, status, answer)
        return answer

    def complete(self, status=200, **fields):
        return self.ask("/v1/completions", status,
                        **{"prompt": self.PROMPT, "temperature": 0, "ignore_eos": True, **self.COMPLETION, **fields})

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        self.fail(name)


def main():
    """unittest, on the binary that the command line names, if it names one."""
    global BINARY
    if len(sys.argv) > 1 and os.path.sep in sys.argv[1]:
        BINARY = sys.argv.pop(1)
    unittest.main()
