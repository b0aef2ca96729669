#!/usr/bin/env python3
"""kvasir pull, models and --model owner/name, against a hub on this machine, beside huggingface_hub itself.

    hub_test.py [KVASIR_BINARY] [unittest arguments]
"""
import contextlib
import json
import os
import pty
import subprocess
import time
import unittest.mock

import cli_support
import filelock
from cli_support import SMALL, get_json
from hub_server import COMMIT, Hub, etag_of
from hub_support import DATA, DEMO, GGUF, RUN, WHOLE_DEMO, HubTest

SHORT = ("--max-tokens", "4", *SMALL)
READ_OF_DEMO = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                "tokenizer_config.json"}


class Pull(HubTest):
    def test_a_folder_runs_serves_and_is_huggingfaces_too(self):
        self.assertIn(str(self.snapshot("o/demo")), self.done("pull", "o/demo"))
        path = self.hugging_face("print(json.dumps(hf.snapshot_download('o/demo', local_files_only=True)))")
        self.assertEqual(path, str(self.snapshot("o/demo")))
        refs, files = self.scan()["o/demo"]
        self.assertEqual((refs, set(files)), (["main"], READ_OF_DEMO))
        for name in files:
            blob = (self.snapshot("o/demo") / name)
            self.assertEqual(os.readlink(blob), f"../../blobs/{etag_of(WHOLE_DEMO[name].read_bytes())}")
            self.assertEqual(blob.read_bytes(), WHOLE_DEMO[name].read_bytes())

        question = ("run", "--max-tokens", "8", "--prompt", "Anna lives in Oslo. Where does Anna live?", *SMALL)
        self.assertEqual(self.done(*question, "--model", "o/demo"), self.done(*question, "--model", DEMO))
        with self.patched_environment(), cli_support.server(*SMALL, "--model", "o/demo") as (url, _):
            self.assertEqual(get_json(url + "/v1/models")["data"][0]["id"], "o/demo")
        self.assertEqual(json.loads(self.done("plan", "--json", *SMALL, "--model", "o/demo@" + COMMIT))["total_bytes"],
                         json.loads(self.done("plan", "--json", *SMALL, "--model", DEMO))["total_bytes"])

    @contextlib.contextmanager
    def patched_environment(self):
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def test_what_huggingface_downloaded_is_found_and_not_fetched_again(self):
        path = self.hugging_face("print(json.dumps(hf.snapshot_download('o/quants', allow_patterns='*Q8_0*')))")
        direct = self.done("run", *RUN, "--model", path + "/m-Q8_0.gguf")
        self.assertEqual(self.done("run", *RUN, "--model", "o/quants"), direct)
        self.hub.requests.clear()
        self.assertIn("0 B were fetched now", self.done("pull", "o/quants:Q8_0"))
        self.assertEqual(self.hub.asked("store", ""), [])

    def test_a_quant_chooses_its_file(self):
        self.done("pull", "o/quants")
        self.assertEqual([path.name for path in self.snapshot("o/quants").iterdir()], ["m-Q4_K_M.gguf"])
        self.fails("run", *RUN, "--model", "o/quants:q8_0", status=2,
                   says=["--model: no file or folder o/quants:q8_0, and ", "has no 'q8_0'; it has: m-Q4_K_M.gguf",
                         "'kvasir pull o/quants:q8_0' fetches it"])
        self.done("pull", "o/quants:q8_0")
        for name in ("o/quants", "o/quants:Q4_K_M", "o/quants:m-Q8_0.gguf"):
            self.assertNotEqual(self.done("run", *RUN, "--model", name), "")
        self.fails("pull", "o/quants:Q2_K", status=2, says="has no 'Q2_K'; it has: m-Q4_K_M.gguf, m-Q8_0.gguf")

    def test_a_folder_of_many_files_beside_a_gguf_file(self):
        folder = DATA / "tiny-mqa"
        self.hub.add("o/shards", {path.name: path for path in folder.iterdir()} | {"model.fp32.safetensors": b"x"})
        self.fails("pull", "o/shards", status=2, says="add ':' and one of: model-f16.gguf, safetensors")
        self.done("pull", "o/shards:safetensors")
        self.assertEqual({path.name for path in self.snapshot("o/shards").iterdir()},
                         {path.name for path in folder.iterdir()} - {"golden.json", "golden.npz", "model-f16.gguf"})
        self.assertEqual(self.done("run", *RUN, "--model", "o/shards"), self.done("run", *RUN, "--model", folder))

    def test_the_index_says_which_files_the_weights_are(self):
        folder = DATA / "tiny-mqa"
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        new_names = {name: f"part {i}/m.safetensors" for i, name in enumerate(sorted(set(index["weight_map"].values())))}
        index["weight_map"] = {tensor: new_names[shard] for tensor, shard in index["weight_map"].items()}
        files = {name: (folder / name).read_bytes() for name in ("config.json", "tokenizer.json")
                 if (folder / name).exists()}
        files |= {new: (folder / old).read_bytes() for old, new in new_names.items()}
        wanted = files | {"model.safetensors.index.json": json.dumps(index).encode()}
        self.hub.add("o/named", wanted | {"model-00001-of-00001.safetensors": b"of another index"})
        self.done("pull", "o/named")
        snapshot = self.snapshot("o/named")
        self.assertEqual({str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()},
                         set(wanted))
        self.assertEqual(self.done("run", *RUN, "--model", "o/named"), self.done("run", *RUN, "--model", folder))
        row, = json.loads(self.done("models", "--json"))["models"]
        self.assertEqual(row["bytes"], sum(map(len, wanted.values())))
        self.assertIn("0 B were fetched now", self.done("pull", "o/named"))

    def test_an_index_without_its_files_installs_nothing(self):
        index = {"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}
        self.hub.add("o/named", {"config.json": b"{}", "model-1.safetensors": b"1",
                                 "model.safetensors.index.json": json.dumps(index).encode()})
        self.fails("pull", "o/named", says="o/named: model.safetensors.index.json names model-2.safetensors, which the "
                   "repository does not have", status=2)
        self.assertEqual(self.hub.asked("hub", "model-1"), [])
        self.assertFalse((self.snapshot("o/named")).exists())
        for bad in ({"x": "../model-1.safetensors"}, {"x": "/etc/passwd"}, {"x": "config.json"}, ["x"]):
            self.hub.add("o/bad", {"config.json": b"{}", "model-1.safetensors": b"1",
                                   "model.safetensors.index.json": json.dumps({"weight_map": bad}).encode()})
            self.fails("pull", "o/bad", says="o/bad: model.safetensors.index.json: ", status=2)
            self.assertFalse(self.snapshot("o/bad").exists())

    def test_a_folder_without_all_of_its_weights_says_what_it_lacks(self):
        folder = DATA / "tiny-mqa"
        self.hub.add("o/shards", {path.name: path for path in folder.iterdir() if path.suffix != ".gguf"})
        self.done("pull", "o/shards")
        answer = self.done("run", *RUN, "--model", "o/shards")
        shard = max(self.snapshot("o/shards").glob("*.safetensors"))
        shard.unlink()  # as an interrupted download of huggingface_hub leaves it
        row, = json.loads(self.done("models", "--json"))["models"]
        self.assertEqual(row["runs"], False)
        self.assertEqual(row["refusal"], f"incomplete: it lacks {shard.name}; 'kvasir pull o/shards:safetensors' "
                                         "fetches the rest")
        self.assertIn(f"cannot run: {row['refusal']}", self.done("models"))
        self.fails("run", *RUN, "--model", "o/shards", status=2,
                   says=["--model: o/shards is incomplete in the Hugging Face cache: ", f"lacks {shard.name}; ",
                         "'kvasir pull o/shards' fetches the rest"])
        self.assertTrue(json.loads(self.done("plan", "--json", *SMALL, "--model", "o/shards"))["weights_assumed"])
        self.done("pull", "o/shards")
        self.assertEqual(self.done("run", *RUN, "--model", "o/shards"), answer)

    def test_all_parts_of_a_file_are_fetched(self):
        parts = {f"m-Q8_0-0000{i}-of-00002.gguf": GGUF[i:] for i in (1, 2)}
        self.hub.add("o/parts", parts)
        self.assertIn("m-Q8_0-00001-of-00002.gguf", self.done("pull", "o/parts:Q8_0"))
        self.assertEqual({path.name for path in self.snapshot("o/parts").iterdir()}, set(parts))
        self.hub.add("o/parts", dict(list(parts.items())[:1]))
        self.fails("pull", "o/parts", status=2, says="o/parts has 1 of the 2 parts of m-Q8_0-00001-of-00002.gguf")

    def test_a_path_comes_first(self):
        self.done("pull", "o/quants")
        (self.home / "o/quants").mkdir(parents=True)
        result = subprocess.run([cli_support.BINARY, "run", *RUN, "--model", "o/quants"], cwd=self.home,
                                capture_output=True, text=True, timeout=60, env=self.environment)
        self.assertEqual(result.returncode, 2)
        self.assertIn("o/quants: has no config.json", result.stderr)

    def test_what_is_nowhere_says_how_to_fetch_it(self):
        self.fails("run", *RUN, "--model", "Qwen/Qwen3-0.6B", status=2,
                   says=["--model: no file or folder Qwen/Qwen3-0.6B", str(self.cache),
                         "'kvasir pull Qwen/Qwen3-0.6B' fetches it"])
        self.fails("run", *RUN, status=2, says="KVASIR_MODEL: no file or folder o/x", KVASIR_MODEL="o/x")
        self.fails("run", *RUN, "--model", "/no/such/model", status=2, says="'kvasir pull' fetches it")
        for name in ("", "demo", "o/demo/x", "../x", "o/..", "o/demo:../x", "o/demo@../x", "o/de mo", "-x"):
            self.fails("pull", name, status=2)
        self.fails("pull", status=2, says="give owner/name[@revision][:file or quant]")
        self.fails("pull", "o/demo", "o/quants", status=2, says="unknown argument 'o/quants'")

    def test_a_tag_and_a_commit(self):
        self.done("pull", "o/quants@v1")
        self.fails("run", *RUN, "--model", "o/quants", status=2, says="'kvasir pull o/quants' fetches it")
        self.done("run", *RUN, "--model", "o/quants@v1")
        self.done("pull", f"o/quants@{COMMIT}")
        self.assertEqual(self.scan()["o/quants"][0], ["v1"])

    def test_plain_http_on_this_machine(self):
        with Hub() as hub:
            hub.add("o/m", {"m.gguf": GGUF})
            self.done("pull", "o/m", HF_ENDPOINT=hub.url)
            self.assertEqual(hub.asked("hub", "/api/")[0]["Authorization"], "Bearer hf_secret")

    def test_a_proxy_of_the_environment(self):
        with Hub() as proxy:
            proxy.add("o/m", {"m.gguf": GGUF})
            del self.environment["HF_TOKEN"]
            self.done("pull", "o/m", HF_ENDPOINT="http://hub.invalid", http_proxy=proxy.url, no_proxy="127.0.0.1")
            self.assertTrue(all(path.startswith("http://hub.invalid/") for kind, _, path, _ in proxy.requests
                                if kind == "hub"))


class Together(HubTest):
    def test_two_pulls_fetch_once(self):
        self.hub.faults["m-Q4_K_M.gguf"] = ["hold 3000"]
        first = self.start("pull", "o/quants")
        self.wait_for(lambda: self.hub.asked("store", "Q4_K_M"))
        second = self.start("pull", "o/quants")
        self.assertIn("another process fetches", second.stderr.readline())
        self.hub.release.set()
        self.ends(first)
        self.assertIn("0 B were fetched now", self.ends(second))
        self.assertEqual(len(self.hub.asked("store", "Q4_K_M")), 1)

    def test_huggingfaces_lock_is_respected(self):
        lock = self.cache / f".locks/models--o--quants/{etag_of(GGUF)}.lock"
        lock.parent.mkdir(parents=True)
        with filelock.FileLock(lock):
            process = self.start("pull", "o/quants")
            self.assertIn("another process fetches", process.stderr.readline())
            self.assertEqual(self.hub.asked("store", ""), [])
        self.ends(process)

    def test_huggingface_respects_the_lock(self):
        self.hub.faults["m-Q4_K_M.gguf"] = ["hold 3000"]
        process = self.start("pull", "o/quants")
        self.wait_for(lambda: self.hub.asked("store", "Q4_K_M"))
        lock = filelock.FileLock(self.cache / f".locks/models--o--quants/{etag_of(GGUF)}.lock")
        with self.assertRaises(filelock.Timeout):
            lock.acquire(timeout=0)
        self.hub.release.set()
        self.ends(process)
        lock.acquire(timeout=0)
        lock.release()


class Models(HubTest):
    def listed(self):
        return json.loads(self.done("models", "--json"))["models"]

    def test_lists_what_is_there_and_what_runs(self):
        self.assertIn("no models in", self.done("models"))
        self.assertEqual(self.listed(), [])
        self.hub.add("o/bert", {"config.json": b'{"architectures": ["BertModel"]}', "model.safetensors": b"x" * 8})
        for name in ("o/demo", "o/quants", "o/quants:Q8_0", "o/bert"):
            self.done("pull", name)
        rows = {row["name"]: row for row in self.listed()}
        self.assertEqual(sorted(rows), ["o/bert:safetensors", "o/demo:safetensors", "o/quants:m-Q4_K_M.gguf",
                                        "o/quants:m-Q8_0.gguf"])
        self.assertEqual({name: row["runs"] for name, row in rows.items() if not row["runs"]},
                         {"o/bert:safetensors": False})
        self.assertIn("BertModel", rows["o/bert:safetensors"]["refusal"])
        self.assertEqual(rows["o/quants:m-Q8_0.gguf"]["bytes"], len(GGUF))
        self.assertEqual(rows["o/demo:safetensors"]["refs"], ["main"])
        table = self.done("models")
        for name, row in rows.items():
            self.assertIn(name, table)
            if row["runs"]:
                self.done("run", *RUN, "--model", name)
        self.assertIn("cannot run: ", table)

    def test_rm_frees_what_only_it_needs(self):
        for name in ("o/demo", "o/quants", "o/quants:Q8_0"):
            self.done("pull", name)
        out = json.loads(self.done("models", "rm", "o/quants:Q8_0", "--json"))
        self.assertEqual(out, {"removed_files": 1, "freed_bytes": len(GGUF)})
        self.assertEqual(self.scan()["o/quants"], [["main"], {"m-Q4_K_M.gguf": len(GGUF)}])
        self.assertIn("1 file removed", self.done("models", "rm", "o/quants"))
        self.assertEqual(list(self.scan()), ["o/demo"])
        self.fails("models", "rm", "o/quants", status=2, says="has no o/quants")
        for name in ("../hub", "o/..", "o/demo:../config.json", "x"):
            self.fails("models", "rm", name, status=2, says="is not the name of a model")
        self.fails("models", "rm", status=2, says="kvasir models rm owner/name")
        self.fails("models", "remove", "o/demo", status=2, says="unknown words 'remove o/demo'")
        self.done("run", *RUN, "--model", "o/demo")

    def test_list_and_its_names(self):
        self.assertIn("no models in", self.done("list"))
        for name in ("o/demo", "o/quants", "o/quants:Q8_0"):
            self.done("pull", name)
        lines = self.done("list").splitlines()
        self.assertEqual(lines[0].split(), ["NAME", "SIZE", "REVISION"])
        self.assertEqual("\n".join(lines[1:]) + "\n", self.done("models"))
        self.assertEqual(self.done("models", "list"), self.done("models"))
        self.assertEqual(self.done("list", "--json"), self.done("models", "--json"))
        answer = self.done("run", "--model", "o/demo", "--chat", "--prompt", "Hello.", *SHORT)
        for name in ("o/demo", "demo", "Demo", "o/demo:safetensors", "demo:safetensors"):
            self.assertEqual(self.done("run", name, "Hello.", *SHORT), answer, name)
        ids = self.done("run", "--model", "o/quants:Q8_0", *RUN)
        for name in ("quants:q8_0", "quants:m-Q8_0.gguf", "o/quants:Q8_0"):
            self.assertEqual(self.done("run", name, *RUN), ids, name)
        self.assertEqual(self.done("run", "quants", *RUN), self.done("run", "--model", "o/quants", *RUN))
        for name in ("quants:q8_0", "Quants:Q8_0", "O/quants:q8_0"):
            self.assertEqual(self.done("run", "--model", name, *RUN), ids, name)
        self.assertEqual(self.done("run", *RUN, KVASIR_MODEL="quants:q8_0"), ids)
        with unittest.mock.patch.dict(os.environ, self.environment), cli_support.server(*SMALL, "--model", "demo") as (url, _):
            self.assertEqual(get_json(url + "/v1/models")["data"][0]["id"], "o/demo:safetensors")
        self.fails("plan", "--model", "qants", status=2, says="--model: no file or folder qants (did you mean quants?)")
        here = "(of it the Hugging Face cache has o/quants:m-Q4_K_M.gguf, o/quants:m-Q8_0.gguf)"
        self.fails("show", "quants:q5_0", status=2, says=f"unknown model 'quants:q5_0' {here}: ")
        self.fails("plan", "--model", "quants:q5_0", status=2, says=f"--model: no file or folder quants:q5_0 {here}")
        self.assertIn("m-Q8_0", self.done("show", "quants:Q8_0"))
        self.fails("show", "qants:Q8_0", status=2, says="unknown model 'qants:Q8_0'")
        self.fails("chat", "qants", status=2, says="(did you mean quants?)")
        self.hub.add("p/quants-GGUF", {"m-Q8_0.gguf": GGUF})
        self.done("pull", "p/quants-GGUF")
        self.fails("run", "quants:q8_0", *RUN, status=2,
                   says="'quants:q8_0' may mean o/quants:m-Q8_0.gguf or p/quants-GGUF:m-Q8_0.gguf")

    def test_rm_removes_what_list_shows(self):
        for name in ("o/demo", "o/quants", "o/quants:Q8_0"):
            self.done("pull", name)
        before = self.scan()
        (self.home / "mine.gguf").write_bytes(GGUF)
        for words, says in ((("quants",), "may mean o/quants:m-Q4_K_M.gguf or o/quants:m-Q8_0.gguf"),
                            (("o/quants",), "may mean"), (("o/other",), "'kvasir list' does not show it"),
                            (("o/demo", "other"), "other: 'kvasir list' does not show it, so nothing was removed"),
                            ((self.home / "mine.gguf",), "are yours to remove"), (("..",), "does not show it"),
                            (("",), "does not show it"), ((), "which model?")):
            self.fails("rm", *words, status=2, says=says)
            self.assertEqual(self.scan(), before)
        self.assertTrue((self.home / "mine.gguf").exists())
        out = self.done("rm", "quants:Q8_0")
        self.assertIn("deleted 'o/quants:m-Q8_0.gguf': 1 file, ", out)
        self.assertEqual(self.scan()["o/quants"], [["main"], {"m-Q4_K_M.gguf": len(GGUF)}])
        out = json.loads(self.done("rm", "o/quants:m-Q4_K_M.gguf", "demo", "--json"))
        self.assertGreater(out["removed_files"], 3)
        self.assertEqual(self.scan(), {})
        self.assertIn("no models in", self.done("list"))

    def test_a_bar_shows_how_much_is_fetched(self):
        self.hub.faults |= {"m-Q8_0.gguf": ["hold 3000"], "m-Q4_K_M.gguf": ["hold 3000"]}
        master, slave = pty.openpty()
        process = subprocess.Popen([cli_support.BINARY, "pull", "o/quants:Q8_0"], stdout=subprocess.DEVNULL, stderr=slave,
                                   env=self.environment)
        os.close(slave)
        self.wait_for(lambda: self.hub.asked("store", "Q8_0"))
        time.sleep(1.2)  # nothing is shown in the first second
        self.hub.release.set()
        said = b""
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while part := os.read(master, 4096):
                said += part
        os.close(master)
        self.assertEqual(process.wait(60), 0)
        self.assertRegex(said.decode(), r"\[#*-*\] fetching m-Q8_0\.gguf: ")
        # The same into a pipe: nothing.
        self.hub.release.clear()
        piped = self.start("pull", "o/quants:Q4_K_M")
        self.wait_for(lambda: self.hub.asked("store", "Q4_K_M"))
        time.sleep(1.2)
        self.hub.release.set()
        self.assertEqual(piped.communicate(timeout=60)[1], "")
        self.assertEqual(piped.returncode, 0)

    def test_rm_waits_for_a_pull(self):
        self.hub.faults["m-Q4_K_M.gguf"] = ["hold 3000"]
        pull = self.start("pull", "o/quants")
        self.wait_for(lambda: self.hub.asked("store", "Q4_K_M"))
        remove = self.start("models", "rm", "o/quants")
        self.assertIn("another process fetches", remove.stderr.readline())
        self.hub.release.set()
        self.ends(pull)
        self.assertIn("1 file removed", self.ends(remove))


if __name__ == "__main__":
    cli_support.main()
