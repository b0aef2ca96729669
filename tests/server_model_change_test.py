#!/usr/bin/env python3
"""Files of a model that are changed, truncated, replaced or removed while `kvasir serve` serves them.

    server_model_change_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from needs import check_needs
from server_harness import BINARY, ROOT, WAIT_S, Server, user

DEMO = ROOT / "models/kvasir-demo"
FACT = "The brass key is in the blue drawer. Where is the brass key?"
ASK = {"messages": user(FACT), "temperature": 0, "max_tokens": 30}
LONG = {"prompt": "The brass key", "max_tokens": 1900, "ignore_eos": True, "temperature": 0,
        "stream": True}


def untie(folder):
    """Writes the embedding once more, as the output head: its rows are then read in the file."""
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8:8 + size]), data[8 + size:]
    begin, end = header["model.embed_tokens.weight"]["data_offsets"]
    header["lm_head.weight"] = dict(header["model.embed_tokens.weight"],
                                    data_offsets=[len(data), len(data) + end - begin])
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + data + data[begin:end])


def overwrite(path):
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(size // 2)
        file.write(b"\x11" * (size - size // 2))


def cut(path):
    os.truncate(path, 0)


class ModelChange(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-change-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.folder / "model"
        shutil.copytree(DEMO, self.model)
        self.weights = self.model / "model.safetensors"

    def start(self, *flags):
        server = Server("--model", str(self.model), "--cache-dir", str(self.folder / "cache"),
                        *flags)
        self.addCleanup(server.stop)
        return server

    def served_in_place(self):
        untie(self.model)
        return self.start("--image-cap", "0"), self.weights

    def served_from_image(self):
        self.start().stop()
        server = self.start()
        image, = (self.folder / "cache" / "images").glob("image-*.kvw")
        return server, image

    def refused(self, server, path):
        """Every request is refused, /ready reports it, and the log says once what to do."""
        for target, body in (("/v1/chat/completions", ASK),
                             ("/v1/chat/completions", dict(ASK, stream=True)),
                             ("/v1/completions", LONG)):
            status, headers, answer = server.request("POST", target, body)
            self.assertEqual(status, 503, answer)
            error = answer["error"]
            self.assertEqual(error["code"], "model_changed")
            self.assertIn(str(path), error["message"])
            self.assertIn("restart", error["message"])
            self.assertIn("retry-after", headers)
        status, _, answer = server.request("GET", "/ready")
        self.assertEqual((status, answer["error"]["code"]), (503, "model_changed"))
        self.assertNotIn(str(path), answer["error"]["message"])
        self.assertEqual(server.get("/health"), {"status": "ok"})
        server.until("the advice on stderr", lambda: any("restart" in s for s in server.log))
        advice = [line for line in server.log if "restart" in line]
        self.assertEqual(len(advice), 1, advice)
        self.assertIn(str(path), advice[0])
        self.assertIn("rename the new file over the old one", advice[0])

    def change_while_streaming(self, server, path, change):
        """A stream that had begun ends with the error; what was cached before is not served."""
        server.post("/v1/chat/completions", ASK)
        with server.open() as s:
            body = json.dumps(LONG)
            s.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
            received = b""
            while received.count(b"data: ") < 5:
                received += s.recv(65536)
            change(path)
            while part := s.recv(65536):
                received += part
        end = received[-1000:]
        self.assertNotIn(b"[DONE]", end)
        self.assertIn(b'"code":"model_changed"', end)
        self.assertIn(str(path).encode(), end)
        self.refused(server, path)
        server.interrupt()
        self.assertEqual(server.wait(), 0)

    def test_overwritten_in_place(self):
        self.change_while_streaming(*self.served_in_place(), overwrite)

    def test_cut(self):
        self.change_while_streaming(*self.served_in_place(), cut)

    def overwrite_and_ask(self, server):
        """Files that steps do not read are checked when a request comes, which ends the running ones."""
        def change(path):
            overwrite(path)
            self.assertEqual(server.request("POST", "/v1/chat/completions", ASK)[0], 503)
        return change

    def test_overwritten_after_all_was_packed(self):
        server = self.start("--image-cap", "0")
        self.change_while_streaming(server, self.weights, self.overwrite_and_ask(server))

    def test_image_overwritten(self):
        self.change_while_streaming(*self.served_from_image(), overwrite)

    def test_image_cut(self):
        self.change_while_streaming(*self.served_from_image(), cut)

    def test_weights_overwritten_beside_an_image(self):
        server, _ = self.served_from_image()
        self.change_while_streaming(server, self.weights, self.overwrite_and_ask(server))

    def test_gguf_overwritten_and_cut(self):
        source = ROOT.parent / "shared/goldens/llama-gqa/model-bf16.gguf"
        check_needs(self, source)
        for change in (overwrite, cut):
            path = self.folder / "model.gguf"
            shutil.copy(source, path)
            self.model = path
            server = self.start("--image-cap", "0")
            body = {"prompt": [1, 2, 3], "max_tokens": 4}
            server.post("/v1/completions", body)
            change(path)
            status, _, answer = server.request("POST", "/v1/completions", body)
            self.assertEqual((status, answer["error"]["code"]), (503, "model_changed"), answer)

    def test_idle_server_is_not_ready_any_more(self):
        server, path = self.served_in_place()
        self.assertEqual(server.get("/ready")["status"], "ready")
        overwrite(path)
        server.until("it is not ready", lambda: server.request("GET", "/ready")[0] == 503)
        self.refused(server, path)

    def test_removed_and_back(self):
        server, path = self.served_in_place()
        want = server.post("/v1/chat/completions", ASK)["choices"]
        aside = self.folder / "aside"
        path.rename(aside)
        self.refused(server, path)
        aside.rename(path)
        server.until("it is ready", lambda: server.request("GET", "/ready")[0] == 200)
        self.assertEqual(server.post("/v1/chat/completions", ASK)["choices"], want)

    def test_deleted(self):
        server, path = self.served_in_place()
        path.unlink()
        self.refused(server, path)

    def test_replaced_by_renaming(self):
        server, path = self.served_in_place()
        want = server.post("/v1/chat/completions", ASK)["choices"]
        new = self.folder / "new"
        shutil.copy(path, new)
        overwrite(new)
        new.rename(path)
        for cache in (True, False):
            body = dict(ASK, cache_prompt=cache)
            self.assertEqual(server.post("/v1/chat/completions", body)["choices"], want)
        self.assertEqual(server.get("/ready")["status"], "ready")
        server.until("a line on stderr", lambda: any("was replaced" in s for s in server.log))

    def test_removed_image(self):
        server, path = self.served_from_image()
        want = server.post("/v1/chat/completions", ASK)["choices"]
        path.unlink()
        for cache in (True, False):
            body = dict(ASK, cache_prompt=cache)
            self.assertEqual(server.post("/v1/chat/completions", body)["choices"], want)

    def test_a_hit_and_a_fresh_answer_never_differ(self):
        """The break of C1 that was found: answers after the change, cached and not."""
        server, path = self.served_in_place()
        hit = server.post("/v1/chat/completions", ASK)["choices"]
        overwrite(path)
        for cache in (True, False):
            status, _, answer = server.request("POST", "/v1/chat/completions",
                                               dict(ASK, cache_prompt=cache))
            if status == 200:
                self.assertEqual(answer["choices"], hit)
            else:
                self.assertEqual((status, answer["error"]["code"]), (503, "model_changed"))

    def test_a_file_that_was_cut_is_an_error_at_start(self):
        size = self.weights.stat().st_size
        for end in (0, 7, 100, 5000, size // 2, size - 1):
            os.truncate(self.weights, end)
            done = subprocess.run([BINARY, "serve", "--port", "0", "--disk", "none", "--model", str(self.model),
                                   "--cache-dir", str(self.folder / "cache")],
                                  capture_output=True, text=True, timeout=WAIT_S)
            self.assertIn(done.returncode, (1, 2), done.stderr)
            self.assertIn(str(self.weights), done.stderr)
            shutil.copy(DEMO / "model.safetensors", self.weights)


if __name__ == "__main__":
    unittest.main()
