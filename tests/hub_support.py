"""Shared by the tests of pull and models: a hub on this machine, an empty cache, huggingface_hub beside them."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import cli_support
from cli_support import SMALL, CliTest
from hub_server import COMMIT, Hub, make_certificate

DATA = cli_support.ROOT / "tests/data"
DEMO = cli_support.ROOT / "models/kvasir-demo"
GGUF = (DATA / "tiny-mqa/model-f16.gguf").read_bytes()
# This machine's environment without what says something about a hub, and without proxies.
CLEAN = {name: value for name, value in os.environ.items()
         if not re.match(r"(HF_|HUGGING|TRANSFORMERS_|SSL_CERT|CURL_CA|XDG_CACHE)|.*_proxy$", name, re.IGNORECASE)}
RUN = ("--ids", "1,2,3", "--max-tokens", "4", "--ignore-eos", *SMALL)
WHOLE_DEMO = {path.name: path for path in DEMO.iterdir() if path.name != "golden.json"}


class HubTest(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.certificates = tempfile.TemporaryDirectory()
        cls.certificate = make_certificate(pathlib.Path(cls.certificates.name))

    @classmethod
    def tearDownClass(cls):
        cls.certificates.cleanup()

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.cache = self.home / "hub"
        self.hub = stack.enter_context(Hub(self.certificate))
        self.hub.add("o/demo", WHOLE_DEMO)
        self.hub.add("o/quants", {"README.md": b"#", "m-Q4_K_M.gguf": GGUF, "m-Q8_0.gguf": GGUF[:-1] + b"\1",
                                  "mmproj-m-Q4_K_M.gguf": GGUF + b"\2"})
        self.environment = CLEAN | {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "hf_secret",
                                    "SSL_CERT_FILE": str(self.certificate[0]),
                                    "XDG_CACHE_HOME": str(self.home / "user-cache")}

    def run_kvasir(self, *arguments, **environment):
        return subprocess.run([cli_support.BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env=self.environment | environment)

    def done(self, *arguments, **environment):
        result = self.run_kvasir(*arguments, **environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def fails(self, *arguments, status=1, says=(), **environment):
        result = self.run_kvasir(*arguments, **environment)
        self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertNotIn("hf_secret", result.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)

    def start(self, *arguments):
        return subprocess.Popen([cli_support.BINARY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment)

    def ends(self, process):
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        return out

    def hugging_face(self, code):
        """What huggingface_hub prints (JSON) about the same cache and hub."""
        code = f"import huggingface_hub as hf, json\n{code}"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                                env=self.environment | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1",
                                                        "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def scan(self):
        """{repo: (refs, {file: size})} by huggingface_hub, which finds no fault in the cache."""
        return self.hugging_face("""
info = hf.scan_cache_dir()
assert not info.warnings, info.warnings
print(json.dumps({repo.repo_id: [sorted(r for one in repo.revisions for r in one.refs),
                                 {str(f.file_path.relative_to(one.snapshot_path)): f.size_on_disk
                                  for one in repo.revisions for f in one.files}] for repo in info.repos}))""")

    def snapshot(self, repo):
        return self.cache / f"models--{repo.replace('/', '--')}/snapshots/{COMMIT}"

    def nothing_installed(self, repo):
        folder = self.cache / f"models--{repo.replace('/', '--')}"
        self.assertEqual([str(path) for name in ("snapshots", "refs") for path in folder.glob(name + "/**/*")], [])
        self.assertEqual([path for path in folder.glob("blobs/*") if path.suffix != ".incomplete"], [])

    def wait_for(self, condition):
        for _ in range(6000):
            if condition():
                return
            time.sleep(0.01)
        self.fail("it did not happen within a minute")
