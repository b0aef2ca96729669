#!/usr/bin/env python3
"""What clients of llama-server find beside completions: slots that are saved and restored, `__verbose`, several
addresses, names of the model.

    server_slots_test.py [KVASIR_BINARY] [unittest arguments]
"""
import http.client
import os
import pathlib
import socket
import stat
import tempfile
import unittest

from server_harness import Server, sse, user

PROMPT = "My name is Mira and I live in Oslo. " * 12


class Slots(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.start()

    def start(self, *flags):
        self.server = Server("--slot-save-path", self.folder.name, "--parallel", "2", *flags)
        self.addCleanup(self.server.stop)

    def complete(self, prompt=PROMPT, **more):
        status, _, answer = self.server.request("POST", "/completion", {
            "prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True, **more})
        self.assertEqual(status, 200, answer)
        return answer

    def act(self, slot, action, filename=None, want=200):
        body = {"filename": filename} if filename is not None else None
        status, _, answer = self.server.request("POST", f"/slots/{slot}?action={action}", body)
        self.assertEqual(status, want, answer)
        return answer if want == 200 else answer["error"]["message"]

    def test_a_saved_slot_is_a_hit_after_a_restart(self):
        first = self.complete(id_slot=1)
        saved = self.act(1, "save", "mira.bin")
        self.assertEqual(saved["n_saved"], first["tokens_evaluated"] + 7)
        file = pathlib.Path(self.folder.name, "mira.bin")
        self.assertEqual(file.stat().st_size, saved["n_written"])
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        self.server.stop()
        self.start()
        restored = self.act(0, "restore", "mira.bin")
        self.assertEqual((restored["id_slot"], restored["n_restored"], restored["n_read"]),
                         (0, saved["n_saved"], saved["n_written"]))
        again = self.complete(id_slot=0)
        self.assertEqual(again["content"], first["content"])
        self.assertLess(again["timings"]["prompt_n"], 16)
        self.assertEqual(self.act(0, "save", "copy.bin")["n_saved"], saved["n_saved"])

    def test_an_erased_slot_is_computed_again_and_nothing_else_is(self):
        first = self.complete(id_slot=0)
        other = "The weather in Bergen is wet and cold. " * 12
        self.complete(other, id_slot=1)
        self.assertEqual(self.act(0, "erase"), {"id_slot": 0, "n_erased": first["tokens_evaluated"] + 7})
        self.assertEqual(self.act(0, "erase"), {"id_slot": 0, "n_erased": 0})
        self.assertGreater(self.complete(other)["timings"]["cache_n"], 0)
        self.assertIn("nothing to save", self.act(0, "save", "x", 400))
        self.complete("Shares nothing.", id_slot=0, cache_prompt=False)
        self.act(0, "save", "x", 400)
        again = self.complete(id_slot=0)
        self.assertEqual((again["timings"]["cache_n"], again["content"]), (0, first["content"]))

    def test_chats_have_slots_too(self):
        status, _, answer = self.server.request("POST", "/v1/chat/completions", {
            "messages": user("Hello"), "max_tokens": 4, "ignore_eos": True, "id_slot": 1})
        self.assertEqual(status, 200, answer)
        self.assertEqual(self.act(1, "save", "chat")["n_saved"], answer["usage"]["prompt_tokens"] + 3)
        self.assertNotIn("id_slot", answer["kvasir"]["ignored"])
        status, _, answer = self.server.request("POST", "/completion", {"prompt": "a", "id_slot": 2})
        self.assertEqual((status, answer["error"]["param"]), (400, "id_slot"))

    def test_only_files_of_the_folder_are_touched(self):
        self.complete(id_slot=0)
        for name in ("../x", "/tmp/x", "a/b", "", ".", "..", ".x", "a\\b", "a\n"):
            for action in ("save", "restore"):
                self.assertIn("without slashes", self.act(0, action, name, 400))
        self.assertEqual(os.listdir(self.folder.name), [])
        self.act(0, "restore", "none", 404)
        self.act(0, "save", None, 400)
        self.act(2, "erase", None, 400)
        self.act("x", "erase", None, 400)
        self.act(0, "bake", "x", 400)
        secret = pathlib.Path(self.folder.name, "outside")
        secret.symlink_to("/etc/hostname")
        self.assertIn("link", self.act(0, "restore", "outside", 400))
        self.act(0, "save", "whole")
        whole = pathlib.Path(self.folder.name, "whole")
        data = bytearray(whole.read_bytes())
        data[60] ^= 1
        whole.write_bytes(data)
        self.act(0, "restore", "whole", 500)
        whole.write_text("ggsq")
        self.assertIn("not a file that this server saved", self.act(0, "restore", "whole", 400))

    def test_an_erase_of_the_cache_forgets_the_slots(self):
        self.complete(id_slot=0)
        self.assertEqual(self.server.request("DELETE", "/v1/cache")[0], 200)
        self.act(0, "save", "x", 400)

    def test_several_keys_have_no_slots(self):
        self.server.stop()
        self.start("--api-key", "a", "--api-key", "b", "--admin-key", "c")
        status, _, answer = self.server.request("POST", "/slots/0?action=erase", None, {"Authorization": "Bearer a"})
        self.assertEqual(status, 403, answer)
        self.assertIn("sessions", answer["error"]["message"])


class Others(unittest.TestCase):
    def serve(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.stop)
        return server

    def test_without_the_flag_actions_are_501(self):
        server = self.serve()
        status, _, answer = server.request("POST", "/slots/0?action=save", {"filename": "x"})
        self.assertEqual(status, 501)
        self.assertIn("--slot-save-path", answer["error"]["message"])

    def test_verbose_answers_show_their_prompt(self):
        server = self.serve()
        ask = {"messages": user("Hello"), "max_tokens": 3, "ignore_eos": True}
        answer = server.request("POST", "/v1/chat/completions", {**ask, "verbose": True})[2]
        verbose = answer["__verbose"]
        prompt = server.request("POST", "/apply-template", {"messages": user("Hello")})[2]["prompt"]
        self.assertEqual(verbose["prompt"], prompt)
        self.assertEqual(verbose["generation_settings"]["n_predict"], 3)
        self.assertEqual((verbose["tokens_evaluated"], verbose["tokens_predicted"]),
                         (answer["usage"]["prompt_tokens"], 3))
        self.assertNotIn("__verbose", server.request("POST", "/v1/chat/completions", ask)[2])
        several = server.request("POST", "/v1/completions", {"prompt": ["a", "b\"\n"], "max_tokens": 1, "verbose": True})[2]
        self.assertEqual([text[-1] for text in several["__verbose"]["prompt"]], ["a", "\n"])
        loud = self.serve("--verbose")
        self.assertIn("__verbose", loud.request("POST", "/v1/chat/completions", ask)[2])
        self.assertNotIn("__verbose", loud.request("POST", "/v1/chat/completions", {**ask, "verbose": False})[2])
        connection = http.client.HTTPConnection("127.0.0.1", loud.port)
        connection.request("POST", "/v1/chat/completions", '{"stream":true,"max_tokens":2,"messages":'
                           '[{"role":"user","content":"Hello"}]}')
        events, done = sse(connection.getresponse().read().decode())
        connection.close()
        self.assertTrue(done)
        self.assertEqual(["__verbose" in event for event in events], [False] * (len(events) - 1) + [True])
        self.assertEqual(events[-1]["__verbose"]["prompt"], prompt)

    def test_several_addresses(self):
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError:
            self.skipTest("this machine has no IPv6")
        for flags in (("--host", "127.0.0.1,::1"), ("--host", "127.0.0.1", "--host", "::1")):
            server = self.serve(*flags)
            for host in ("127.0.0.1", "::1"):
                connection = http.client.HTTPConnection(host, server.port)
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()

    def test_names_and_tags(self):
        server = self.serve("--alias", "b, a", "--alias", "c", "--tags", "chat,small")
        models = server.get("/v1/models")["data"]
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0]["id"], "b")
        self.assertEqual(models[0]["aliases"][:3], ["b", "a", "c"])
        self.assertEqual(models[0]["tags"], ["chat", "small"])
        for name in "abc":
            self.assertEqual(server.request("POST", "/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})[0], 200)

    def test_progress_begins_with_what_the_cache_had(self):
        server = self.serve()
        server.request("POST", "/completion", {"prompt": PROMPT, "n_predict": 1})
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/completion", '{"stream":true,"n_predict":1,"return_progress":true,'
                           f'"timings_per_token":true,"prompt":"{PROMPT} And more of it."}}')
        events, _ = sse(connection.getresponse().read().decode())
        connection.close()
        progress = [event for event in events if "prompt_progress" in event]
        first, last = progress[0]["prompt_progress"], progress[-1]["prompt_progress"]
        self.assertGreater(first["cache"], 0)
        self.assertEqual((first["processed"], first["time_ms"]), (first["cache"], 0))
        self.assertEqual(progress[0]["timings"]["prompt_n"], 0)
        self.assertEqual(last["processed"], last["total"])

    def test_ignored_ends_are_biases(self):
        server = self.serve()
        for ignored in (True, False):
            answer = server.request("POST", "/completion", {"prompt": "a", "n_predict": 1, "ignore_eos": ignored})[2]
            biases = answer["generation_settings"]["logit_bias"]
            self.assertEqual(bool(biases), ignored)
            self.assertTrue(all(entry["bias"] is None for entry in biases))


if __name__ == "__main__":
    unittest.main()
