#!/usr/bin/env python3
"""Adapters of a real server: which requests get which, loading and unloading, who may, what is refused.

    server_adapters_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import numpy

from needs import needs_package
from server_harness import BINARY, ROOT, Server

BASE = ROOT / "tests" / "data" / "tiny-gqa"
DEMO = ROOT / "models" / "kvasir-demo"  # chats
IDS = [5, 2, 9, 11, 3, 8, 40, 17, 21, 30, 4, 6, 2, 9, 11, 3, 8, 40, 17, 21, 30, 4, 6]


def write_adapter(folder, seed, targets=("q_proj", "v_proj", "down_proj"), rank=4, base=BASE, largest=0.3):
    """An adapter of the base with random numbers, as PEFT saves it."""
    config = json.loads((base / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    sizes = {"q_proj": (heads * head_dim, hidden, "self_attn"),
             "v_proj": (config["num_key_value_heads"] * head_dim, hidden, "self_attn"),
             "down_proj": (hidden, config["intermediate_size"], "mlp")}
    random = numpy.random.default_rng(seed)
    header, data = {}, b""
    for layer in range(config["num_hidden_layers"]):
        for target in targets:
            out, into, block = sizes[target]
            for half, shape in ("A", (rank, into)), ("B", (out, rank)):
                numbers = random.uniform(-largest, largest, shape).astype("<f4").tobytes()
                header[f"base_model.model.model.layers.{layer}.{block}.{target}.lora_{half}.weight"] = {
                    "dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(numbers)]}
                data += numbers
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 8}))
    return folder


def kvasir(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=120)


class AdaptersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name) / "adapters"
        for seed, name in enumerate(["a", "b", "c"]):
            write_adapter(cls.dir / name, seed)
        cls.outside = write_adapter(pathlib.Path(cls.folder.name) / "outside", 9)
        os.symlink(cls.outside, cls.dir / "link")
        cls.server = cls.start("--lora", f"alpha={cls.dir / 'a'}", "--lora-dir", str(cls.dir))

    @classmethod
    def start(cls, *flags):
        return Server("--model", str(BASE), "--kv-memory", "16MiB", "--threads", "1", *flags)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def post(self, path, body, status=200, server=None, headers=None):
        got, _, answer = (server or self.server).request("POST", path, json.dumps(body).encode(), headers=headers)
        self.assertEqual(got, status, answer)
        return answer

    def get(self, path, server=None, headers=None):
        status, _, answer = (server or self.server).request("GET", path, headers=headers)
        self.assertEqual(status, 200, answer)
        return answer

    def ask(self, server=None, **fields):
        body = {"prompt": IDS, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        answer = self.post("/v1/completions", body | fields, server=server)
        return answer["choices"][0]["token_ids"], answer["kvasir"], answer

    def test_a_name_is_a_model_and_a_list_says_it_all(self):
        models = {entry["id"]: entry for entry in self.get("/v1/models")["data"]}
        self.assertEqual(models["alpha"]["parent"], "tiny-gqa")
        self.assertEqual(self.get("/v1/models/alpha")["id"], "alpha")
        base, receipt, plain = self.ask()
        self.assertEqual(receipt["adapters"], [])
        tuned, receipt, answer = self.ask(model="alpha")
        self.assertNotEqual(tuned, base)
        self.assertEqual([(a["name"], a["scale"]) for a in receipt["adapters"]], [("alpha", 1)])
        self.assertEqual(receipt["miss"]["reason"], "adapter_changed")
        self.assertEqual(sum(receipt["reused"].values()), 0)
        self.assertNotEqual(answer["system_fingerprint"], plain["system_fingerprint"])
        same, receipt, _ = self.ask(lora=[{"id": 0, "scale": 1}])
        self.assertEqual(same, tuned)
        self.assertGreater(sum(receipt["reused"].values()), 0)
        self.assertEqual(self.ask(lora=[])[0], base)
        self.assertEqual(self.ask(model="alpha", lora=[])[0], base)
        self.assertEqual(self.ask(lora=[{"id": 0, "scale": 0}])[1]["adapters"], [])
        self.assertIn("lora_requests_info", self.server.request("GET", "/metrics")[2])

    @needs_package("openai", "openai")
    def test_a_client_of_openai_picks_an_adapter(self):
        import openai
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none")
        self.assertIn("alpha", [model.id for model in client.models.list()])
        more = {"ignore_eos": True, "return_token_ids": True, "cache_prompt": False}
        base, tuned = (client.completions.create(model=name, prompt=IDS, max_tokens=12, temperature=0, extra_body=more)
                       .choices[0].token_ids for name in ("tiny-gqa", "alpha"))
        self.assertEqual(base, self.ask(cache_prompt=False)[0])
        self.assertEqual(tuned, self.ask(model="alpha", cache_prompt=False)[0])
        self.assertNotEqual(base, tuned)
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="gamma", prompt=IDS)

    def test_wrong_lists_are_400_and_name_what_is_wrong(self):
        for lora, says in (({"id": 0}, "not a list"), ([{"scale": 1}], "id"), ([{"id": 0}], "scale"),
                           ([{"id": 99, "scale": 1}], "99"), ([{"id": 0, "scale": 101}], "101"),
                           ([{"id": 0, "scale": 1}, {"id": 0, "scale": 2}], "twice"), ([3], "id")):
            error = self.post("/v1/completions", {"prompt": IDS, "lora": lora}, 400)["error"]
            self.assertEqual(error["param"], "lora", error)
            self.assertIn(says, error["message"])
        error = self.post("/v1/completions", {"prompt": IDS, "model": "gamma"}, 404)["error"]
        self.assertIn("known: tiny-gqa, alpha", error["message"])

    def test_adapters_are_loaded_replaced_and_unloaded(self):
        load = {"lora_name": "beta", "lora_path": "b"}
        card = self.post("/v1/load_lora_adapter", load)
        self.assertIn("beta", [entry["id"] for entry in self.get("/v1/models")["data"]])
        first = self.ask(model="beta")[0]
        self.assertIn("taken", self.post("/v1/load_lora_adapter", load, 400)["error"]["message"])
        replaced = self.post("/v1/load_lora_adapter", load | {"lora_path": str(self.dir / "c"), "load_inplace": True})
        self.assertEqual(replaced["id"], card["id"])
        self.assertNotEqual(replaced["digest"], card["digest"])
        second, receipt, _ = self.ask(model="beta")
        self.assertNotEqual(second, first)
        self.assertEqual(sum(receipt["reused"].values()), 0)
        self.post("/v1/load_lora_adapter", load | {"load_inplace": True})
        again, receipt, _ = self.ask(model="beta")
        self.assertEqual(again, first)
        self.assertGreater(sum(receipt["reused"].values()), 0)  # the same numbers are the same adapter
        self.post("/v1/unload_lora_adapter", {"lora_name": "beta"})
        self.post("/v1/unload_lora_adapter", {"lora_name": "beta"}, 404)
        self.post("/v1/completions", {"prompt": IDS, "model": "beta"}, 404)

    def test_a_file_that_is_overwritten_after_the_load_changes_nothing(self):
        folder = self.dir / "overwritten"
        shutil.copytree(self.dir / "b", folder)
        card = self.post("/v1/load_lora_adapter", {"lora_name": "kept", "lora_path": "overwritten"})
        before = self.ask(model="kept", cache_prompt=False)[0]
        (folder / "adapter_model.safetensors").write_bytes((self.dir / "c" / "adapter_model.safetensors").read_bytes())
        self.assertEqual(self.ask(model="kept", cache_prompt=False)[0], before)
        self.assertEqual(self.get("/lora-adapters")[-1]["digest"], card["digest"])
        self.post("/v1/load_lora_adapter", {"lora_name": "kept", "lora_path": "overwritten", "load_inplace": True})
        self.assertNotEqual(self.ask(model="kept", cache_prompt=False)[0], before)
        self.post("/v1/unload_lora_adapter", {"lora_name": "kept"})

    def test_what_cannot_be_loaded_is_refused_and_leaves_nothing(self):
        before = self.get("/lora-adapters")
        for path, status in (("../outside", 403), (str(self.outside), 403), ("link", 403), ("none", 404), (".", 403),
                             ("b\0c", 400)):
            self.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path}, status)
        for name, status in (("alpha", 400), ("tiny-gqa", 400), ("", 400)):
            self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "b"}, status)
        broken = self.dir / "broken"
        shutil.copytree(self.dir / "b", broken)
        (broken / "adapter_config.json").write_text('{"peft_type": "LORA", "use_dora": true}')
        error = self.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "broken"}, 400)["error"]
        self.assertIn("use_dora", error["message"])
        self.assertEqual(self.get("/lora-adapters"), before)

    def test_numbers_that_are_not_finite_name_the_adapters(self):
        write_adapter(self.dir / "huge", 3, largest=1e30)
        card = self.post("/v1/load_lora_adapter", {"lora_name": "huge", "lora_path": "huge"})
        try:
            error = self.post("/completion", {"prompt": IDS, "n_predict": 2, "lora": [{"id": card["id"], "scale": 1}]},
                              400)["error"]
            self.assertIn("with these adapters and scales", error["message"])
            self.post("/completion", {"prompt": IDS, "n_predict": 2, "lora": []})
        finally:
            self.post("/v1/unload_lora_adapter", {"lora_name": "huge"})

    def test_a_plan_has_the_servers_bytes(self):
        flags = ["--model", str(BASE), "--kv-memory", "16MiB", "--threads", "1", "--lora", f"alpha={self.dir / 'a'}",
                 "--lora-dir", str(self.dir)]
        done = subprocess.run([BINARY, "plan", "--json", *flags], capture_output=True, text=True, timeout=60)
        plan, state = json.loads(done.stdout), self.get("/v1/cache")
        for name in ("adapter_bytes", "scratch_bytes", "index_bytes"):
            self.assertEqual(plan[name], state[name], name)
        self.assertEqual(plan["adapter_bytes"], 256 << 20)

    def test_a_draft_model_of_another_shape_has_none(self):
        server = self.start("--lora", f"alpha={self.dir / 'a'}", "--draft-model", str(BASE.parent / "tiny-mqa"),
                            "--draft-kv-memory", "4MiB", "--speculate", "always")
        try:
            self.assertEqual(self.ask(server, model="alpha")[0], self.ask(model="alpha", cache_prompt=False)[0])
        finally:
            server.stop()

    def test_a_full_memory_is_400_and_leaves_nothing(self):
        server = self.start("--lora-dir", str(self.dir), "--lora-memory", "32KiB")
        try:
            self.post("/v1/load_lora_adapter", {"lora_name": "first", "lora_path": "a"}, server=server)
            taken = self.get("/lora-adapters", server)[0]["bytes"]
            self.assertLess(taken, 32 << 10)
            error = self.post("/v1/load_lora_adapter", {"lora_name": "second", "lora_path": "b"}, 400, server)["error"]
            self.assertEqual(error["param"], "lora_path")
            self.assertIn("--lora-memory", error["message"])
            self.assertEqual([card["name"] for card in self.get("/lora-adapters", server)], ["first"])
            self.post("/v1/unload_lora_adapter", {"lora_name": "first"}, server=server)
            self.post("/v1/load_lora_adapter", {"lora_name": "second", "lora_path": "b"}, server=server)
            self.assertEqual(self.ask(server, model="second")[1]["adapters"][0]["name"], "second")
        finally:
            server.stop()

    def test_more_adapters_than_max_loras_are_400(self):
        server = self.start("--lora-dir", str(self.dir), "--max-loras", "1")
        try:
            self.post("/v1/load_lora_adapter", {"lora_name": "first", "lora_path": "a"}, server=server)
            error = self.post("/v1/load_lora_adapter", {"lora_name": "second", "lora_path": "b"}, 400, server)["error"]
            self.assertIn("--max-loras", error["message"])
        finally:
            server.stop()

    def test_metrics_name_the_adapters_of_requests(self):
        def labels():
            text = self.get("/metrics")
            (line,) = [line for line in text.splitlines() if line.startswith("vllm:lora_requests_info")]
            return dict(re.findall(r'(\w+)="([^"]*)"', line)), float(line.rsplit(" ", 1)[1])
        shown, value = labels()
        self.assertEqual(shown["max_lora"], "8")
        self.assertLess(abs(value - time.time()), 60)
        is_seen = threading.Event()

        def go_on():
            while not is_seen.is_set():
                self.ask(model="alpha", max_tokens=200)
        asker = threading.Thread(target=go_on)
        asker.start()
        try:
            self.server.until("a request runs", lambda: labels()[0]["running_lora_adapters"] == "alpha")
        finally:
            is_seen.set()
            asker.join()
        self.server.until("nothing runs", lambda: labels()[0]["running_lora_adapters"] == "")
        plain = self.start()
        try:
            self.assertNotIn("lora_requests_info{", self.get("/metrics", plain))
        finally:
            plain.stop()

    def test_scales_of_the_server_apply_to_requests_that_say_nothing(self):
        server = self.start("--lora", str(self.dir / "a"), "--lora-scaled", f"{self.dir / 'b'}:0.5")
        try:
            base = self.ask(server, lora=[])[0]
            both, receipt, _ = self.ask(server)
            self.assertEqual([(a["name"], a["scale"]) for a in receipt["adapters"]], [("a", 1), ("b", 0.5)])
            self.assertNotEqual(both, base)
            self.post("/lora-adapters", [{"id": 1, "scale": 2}], server=server)
            self.assertEqual([card["scale"] for card in self.get("/lora-adapters", server)], [0, 2])
            self.assertEqual(self.ask(server)[1]["adapters"][0]["name"], "b")
            self.post("/lora-adapters", [], server=server)
            self.assertEqual(self.ask(server)[0], base)
            self.post("/lora-adapters", [{"id": 7, "scale": 1}], 400, server=server)
            scales = [{"id": 0, "scale": 0}, {"id": 1, "scale": 0.5, "x": 1, "path": {"y": 2}}]
            answer = self.post("/lora-adapters", scales, server=server)
            self.assertEqual(answer["ignored"], ["lora[1].path", "lora[1].x"])
            for wrong, says in (({"id": 0}, "[0]: needs a scale"), ({"scale": 1}, "[0]: needs an id"),
                                ({"id": 0, "scale": "1"}, "[0]: needs a scale"), ({"id": -1, "scale": 1}, "[0]: needs an id"),
                                ({"id": 0, "scale": 1e9}, "[0]: the scale is"), (0, "[0]: needs an id")):
                error = self.post("/lora-adapters", [wrong], 400, server=server)["error"]
                self.assertIn(says, error["message"], wrong)
            self.assertEqual([card["scale"] for card in self.get("/lora-adapters", server)], [0, 0.5])
            self.post("/lora-adapters", {"id": 1}, 400, server=server)
            self.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "b"}, 403, server=server)
        finally:
            server.stop()

    def test_with_several_keys_changes_are_the_administrators(self):
        server = self.start("--lora", f"alpha={self.dir / 'a'}", "--lora-dir", str(self.dir), "--api-key", "one",
                            "--api-key", "two", "--admin-key", "boss")
        one, boss = {"Authorization": "Bearer one"}, {"Authorization": "Bearer boss"}
        try:
            self.assertNotIn("path", self.get("/lora-adapters", server, one)[0])
            self.assertIn("path", self.get("/lora-adapters", server, boss)[0])
            load = {"lora_name": "beta", "lora_path": "b"}
            self.post("/lora-adapters", [], 403, server, one)
            self.post("/v1/load_lora_adapter", load, 403, server, one)
            card = self.post("/v1/load_lora_adapter", load | {"base_model_name": "x"}, 200, server, boss)
            self.assertEqual(card["ignored"], ["base_model_name"])
            self.post("/v1/unload_lora_adapter", {"lora_name": "beta"}, 403, server, one)
            gone = self.post("/v1/unload_lora_adapter", {"lora_name": "beta", "lora_int_id": 2}, 200, server, boss)
            self.assertEqual(gone["ignored"], ["lora_int_id"])
        finally:
            server.stop()

    def test_a_wrong_adapter_ends_a_start(self):
        for flags, says in ((["--lora", str(self.dir / "none")], "does not exist"),
                            (["--lora", f"tiny-gqa={self.dir / 'a'}"], "taken"),
                            (["--lora", f"default={self.dir / 'a'}"], "taken"),
                            (["--lora", f"x={self.dir / 'a'}", "--lora", f"x={self.dir / 'b'}"], "taken"),
                            (["--lora", str(self.dir / "a"), "--max-lora-rank", "2"], "--max-lora-rank"),
                            (["--lora", str(self.dir / "a"), "--lora-memory", "1KiB"], "--lora-memory")):
            done = kvasir("run", "--model", str(BASE), "--ids", "5,2", "--max-tokens", "1", *flags)
            self.assertEqual(done.returncode, 2, (flags, done.stderr))
            self.assertIn(says, done.stderr)
            plan = kvasir("plan", "--model", str(BASE), *flags)
            self.assertEqual((plan.returncode, plan.stderr.replace("kvasir plan", "kvasir run")), (2, done.stderr))
        damaged = write_adapter(pathlib.Path(self.folder.name) / "damaged", 3)
        with (damaged / "adapter_model.safetensors").open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(struct.pack("<f", float("nan")))
        done = kvasir("run", "--model", str(BASE), "--ids", "5,2", "--max-tokens", "1", "--lora", damaged)
        self.assertIn("holds NaN or infinity", done.stderr)
        plan = kvasir("plan", "--model", str(BASE), "--lora", damaged)
        self.assertEqual((plan.returncode, plan.stderr.replace("kvasir plan", "kvasir run")),
                         (done.returncode, done.stderr))
        for command in ("run", "plan"):
            done = kvasir(command, "--model", BASE.parent / "m2m100-tiny", "--lora", self.dir / "a")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("adapters of encoder-decoder models are not supported", done.stderr)
        done = kvasir("serve", "--model", str(BASE), "--port", "0", "--alias", "x", "--lora", f"x={self.dir / 'a'}")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("taken", done.stderr)

    def test_commands_apply_every_adapter_and_plan_counts_it(self):
        run = ["run", "--model", str(BASE), "--ids", ",".join(map(str, IDS)), "--max-tokens", "12", "--temperature", "0",
               "--ignore-eos", "--json"]
        tuned = json.loads(kvasir(*run, "--lora", f"alpha={self.dir / 'a'}").stdout)
        self.assertEqual(tuned["tokens"], self.ask(model="alpha")[0])
        self.assertEqual(tuned["receipt"]["adapters"][0]["name"], "alpha")
        plan = json.loads(kvasir("plan", "--json", "--model", str(BASE), "--lora", str(self.dir / "a")).stdout)
        self.assertGreater(plan["adapter_bytes"], 0)
        self.assertEqual(plan["adapter_bytes"], self.get("/lora-adapters")[0]["bytes"])

    def test_an_evaluation_is_of_the_model_with_its_adapters(self):
        ids = pathlib.Path(self.folder.name) / "ids"
        ids.write_text(" ".join(map(str, IDS * 4)))

        def perplexity(*flags):
            done = kvasir("eval", "--json", "--model", BASE, "--ids", ids, "--formats", "f16", "--layers", "off",
                          "--cache-dir", self.folder.name, *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["reference"]["perplexity"]["value"]
        self.assertNotEqual(perplexity("--lora", self.dir / "a"), perplexity())
        self.assertEqual(perplexity("--lora-scaled", f"{self.dir / 'a'}:0"), perplexity())

    def test_the_selftest_holds_with_an_adapter(self):
        result = kvasir("selftest", "--model", BASE, "--threads", "1", "--lora", self.dir / "a")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_a_chat_with_an_adapter_forgets_what_was_read_with_it(self):
        adapter = write_adapter(self.dir / "chat", 5, base=DEMO, largest=0.01)
        lines = ["Where does Anna live?", "/forget 0", "Who are you?"]
        result = subprocess.run(
            [BINARY, "chat", "--model", DEMO, "--kv-memory", "16MiB", "--lora", adapter, "--system",
             "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."],
            input="\n".join(lines), capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"message 0 is forgotten: erased \d+ blocks? with [1-9]\d* tokens\)")
        cached = [int(n) for n in re.findall(r"\[prompt \d+ tokens: (\d+) from cache", result.stdout)]
        self.assertEqual(len(cached), 2, result.stdout)
        self.assertLess(cached[1], 16)


class SessionsTest(unittest.TestCase):
    """Sessions of a model that chats, with an adapter of the start."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = pathlib.Path(self.folder.name)
        for seed, name in enumerate(["a", "b"]):
            write_adapter(self.dir / name, seed, base=DEMO)
        self.server = Server("--model", str(DEMO), "--kv-memory", "32MiB", "--threads", "1", "--lora",
                             f"alpha={self.dir / 'a'}", "--lora-dir", str(self.dir))
        self.addCleanup(self.server.stop)

    def call(self, path, body, method="POST", status=200):
        got, _, answer = self.server.request(method, path, body)
        self.assertEqual(got, status, answer)
        return answer

    def make(self, **fields):
        made = self.call("/v1/sessions", {"sampling": {"temperature": 0, "max_tokens": 12}} | fields, status=201)
        return "/v1/sessions/" + made["id"]

    def turn(self, path, text, **fields):
        return self.call(path + "/generate", {"messages": [{"role": "user", "content": text}]} | fields)["kvasir"]

    def reused(self, receipt):
        return sum(receipt["reused"].values())

    def swap(self, old, new):
        """Unloads an adapter, and loads the first one's files under another name."""
        self.call("/v1/unload_lora_adapter", {"lora_name": old})
        self.call("/v1/load_lora_adapter", {"lora_name": new, "lora_path": "a"})

    SECRET = "My name is Mira. I live in Oslo. My cat is called Pixel. What is the name of my cat?"

    def test_turns_find_their_adapters_blocks_and_no_others(self):
        path = self.make(model="alpha")
        first = self.turn(path, self.SECRET)
        self.assertEqual([a["name"] for a in first["adapters"]], ["alpha"])
        second = self.turn(path, "And where do I live?")
        self.assertGreater(self.reused(second), 20)
        third = self.turn(path, "Who am I?", lora=[])
        self.assertEqual((third["adapters"], third["miss"]["reason"]), ([], "adapter_changed"))
        self.assertEqual(self.reused(third), 0)
        self.assertEqual(self.turn(path, "Why?", lora=[{"id": 0, "scale": 0.5}])["miss"]["reason"], "adapter_changed")

    def test_a_forget_takes_what_was_read_with_an_adapter_that_is_unloaded(self):
        for forgets in (False, True):
            name = f"alpha{forgets}"
            self.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "a"})
            path = self.make(model=name)
            self.turn(path, self.SECRET)
            self.turn(path, self.SECRET, lora=[])
            self.swap(name, name + "2")
            if forgets:
                self.assertGreater(self.call(path + "/forget", {"index": 0})["erased_blocks"], 0)
                self.call(path, None, "DELETE")
            for asked in ({"model": name + "2"}, {"lora": []}):
                receipt = self.call("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": self.SECRET}], "max_tokens": 0} | asked)["kvasir"]
                if forgets:
                    self.assertLess(self.reused(receipt), 32, (asked, receipt))
                else:
                    self.assertGreater(self.reused(receipt), 32, (asked, receipt))
                self.call("/v1/cache", None, "DELETE") if asked == {"lora": []} else None
            self.call("/v1/unload_lora_adapter", {"lora_name": name + "2"})

    def test_an_erase_covers_every_adapter(self):
        ask = {"messages": [{"role": "user", "content": self.SECRET}], "max_tokens": 0}
        choices = ({"model": "alpha"}, {"lora": [{"id": 0, "scale": 0.5}]}, {})
        for choice in choices:
            self.call("/v1/chat/completions", ask | choice)
        for choice in choices:
            self.assertGreater(self.reused(self.call("/v1/chat/completions", ask | choice)["kvasir"]), 20)
        self.call("/v1/cache", None, "DELETE")
        for choice in choices:
            self.assertEqual(self.reused(self.call("/v1/chat/completions", ask | choice)["kvasir"]), 0)

    def test_the_next_turn_is_prepared_with_the_sessions_adapter(self):
        path = self.make(model="alpha", prepare=True)
        before = self.server.metric("kvasir_prepared_tokens_total")
        self.turn(path, self.SECRET)
        self.server.until("prepared", lambda: self.server.metric("kvasir_prepared_tokens_total") > before)
        receipt = self.turn(path, "Who are you?")
        self.assertLess(receipt["computed"], 24, receipt)
        self.assertEqual([a["name"] for a in receipt["adapters"]], ["alpha"])

    def test_a_session_of_an_unloaded_adapter_is_404_until_it_is_there(self):
        path = self.make(model="alpha")
        self.turn(path, self.SECRET)
        self.call("/v1/unload_lora_adapter", {"lora_name": "alpha"})
        self.call(path + "/generate", {"messages": [{"role": "user", "content": "Why?"}]}, status=404)
        self.call("/v1/load_lora_adapter", {"lora_name": "alpha", "lora_path": "a"})
        self.assertGreater(self.reused(self.turn(path, "Why?")), 20)


if __name__ == "__main__":
    unittest.main()
