#!/usr/bin/env python3
"""What a request says is in the prompt, or the answer says that it is not: tools, calls, odd entries, dates,
thoughts that are closed, prompts that begin with BOS.

    server_chat_forms_test.py [KVASIR_BINARY] [unittest arguments]
"""
import gzip
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

from server_harness import BINARY, ROOT, Server, user
from server_special_tokens_test import DEMO, GGUF_TOKENS, demo_template, write_gguf

CASES = ROOT / "tests/data/cases"
DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"


def case(name):
    text = (CASES / name).read_text()
    return json.loads(text) if name.endswith(".json") else text


class Forms(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-forms-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.stop)
        return server

    def with_template(self, name, *flags):
        return self.start("--chat-template-file", str(CASES / name), *flags)

    def gguf(self, metadata):
        path = self.folder / "m.gguf"
        write_gguf(path, GGUF_TOKENS | metadata)
        shutil.copy(DEMO / "tokenizer.json", self.folder)
        return path

    def ignored(self, server, body):
        return server.post("/v1/chat/completions", {**body, "max_tokens": 1})["kvasir"]["ignored"]

    def test_what_the_template_does_not_show_is_ignored_by_name_and_logged_once(self):
        server = self.with_template("no-tools.jinja")
        # The log does not take an unknown field of a part for a message that the template does not show.
        marked = [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]
        self.assertEqual(self.ignored(server, {"messages": marked}), ["messages[0].content[0].cache_control"])
        for _ in range(3):
            self.assertEqual(self.ignored(server, case("tools-unseen.json")), ["tools"])
            self.assertEqual(self.ignored(server, case("result-unseen.json")), ["tools", "messages[2]"])
        self.assertEqual(self.ignored(server, {"messages": user("Hi")}), [])
        late = [*user("Hi"), {"role": "system", "content": "Be kind."}, *user("So?")]
        self.assertEqual(self.ignored(server, {"messages": late, "stream_options": None}), ["messages[1]"])
        caps = server.get("/props")["chat_template_caps"]
        self.assertEqual({name for name, is_on in caps.items() if is_on is True}, {"supports_system_role", "supports_string_content"})
        self.assertEqual(caps["tool_call_arguments"], "content")

        # Sessions say the index of the session's message.
        status, _, session = server.request("POST", "/v1/sessions", {"messages": late[:2], "tools": case("tools-unseen.json")["tools"]})
        self.assertEqual(status, 201, session)
        answer = server.post(f"/v1/sessions/{session['id']}/generate", {"messages": user("So?"), "max_tokens": 1})
        self.assertEqual(answer["kvasir"]["ignored"], ["tools", "messages[1]"])
        server.stop()
        for says in ("does not show tools", "does not show all that messages say"):
            self.assertEqual(sum(says in line for line in server.log), 1, server.log)
        self.assertTrue(any("first=messages[2]" in line for line in server.log), server.log)

    def test_calls_are_given_in_the_form_that_the_template_shows(self):
        server = self.with_template("calls-when-null.jinja")
        prompt = server.post("/apply-template", case("call-history.json"))["prompt"]
        self.assertIn('CALL get_weather {"city": "Oslo"};', prompt)
        self.assertEqual(self.ignored(server, case("call-history.json")), ["tools"])
        caps = server.get("/props")["chat_template_caps"]
        self.assertEqual((caps["tool_call_content"], caps["tool_call_arguments"], caps["supports_tool_calls"]), ("null", "text", True))
        answer = server.post("/v1/chat/completions", {**case("cut-arguments.json"), "max_tokens": 1})
        self.assertEqual(answer["kvasir"]["ignored"], ["tools"])

    def test_an_error_of_a_history_names_its_place(self):
        server = self.with_template("arguments-items.jinja")
        status, _, answer = server.request("POST", "/v1/chat/completions", case("cut-arguments.json"))
        self.assertEqual((status, answer["error"]["param"]), (400, "messages[1].tool_calls[0].function.arguments"), answer)
        for name in ("empty-arguments.json", "empty-tool-calls.json", "assistant-null.json", "call-history.json"):
            server.post("/v1/chat/completions", {**case(name), "max_tokens": 1})
        server = self.with_template("one-call-at-most.jinja")
        server.post("/v1/chat/completions", {**case("empty-tool-calls.json"), "max_tokens": 1})
        calls = case("call-history.json")
        calls["messages"][1]["tool_calls"] *= 2
        status, _, answer = server.request("POST", "/v1/chat/completions", calls)
        self.assertEqual((status, answer["error"]["param"]), (400, "messages[1]"), answer)
        self.assertIn("one call at a time", answer["error"]["message"])

    def test_numbers_are_as_they_were_sent(self):
        server = self.with_template("arguments-json.jinja")
        self.assertIn('{"id": 12345678901234567890}', server.post("/apply-template", case("big-integers.json"))["prompt"])
        schema = {"type": "integer", "minimum": 18446744073709551610, "maximum": 18446744073709551615}
        body = {"messages": user("A number"), "temperature": 1, "seed": 2, "n": 4, "max_tokens": 64,
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
        for choice in server.post("/v1/chat/completions", body)["choices"]:
            self.assertLessEqual(18446744073709551610, json.loads(choice["message"]["content"]))
            self.assertLessEqual(json.loads(choice["message"]["content"]), 18446744073709551615)
        for seed, is_taken in ((2 ** 64 - 1, True), (2 ** 64, False), (-2 ** 63, True), (-2 ** 63 - 1, False)):
            status, _, answer = server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "seed": seed})
            self.assertEqual(status, 200 if is_taken else 400, (seed, answer))
            if not is_taken:
                self.assertEqual(answer["error"]["message"],
                                 f"seed: {seed} is not an integer between -9223372036854775808 and 18446744073709551615")

    def test_unknown_fields_of_inner_objects_are_listed_by_path(self):
        server = self.start()
        body = {"messages": user("Hi"), "other": 1,
                "response_format": {"type": "json_schema", "x": 1, "json_schema": {"name": "n", "y": 2, "schema": {"enum": ["a"]}}},
                "tool_choice": {"type": "function", "z": 1, "function": {"name": "get_weather", "w": 1}},
                "tools": case("tools-unseen.json")["tools"]}
        self.assertEqual(self.ignored(server, body)[:5],
                         ["other", "response_format.x", "response_format.json_schema.y", "tool_choice.z", "tool_choice.function.w"])
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]
        self.assertEqual(self.ignored(server, {"messages": parts}), ["messages[0].content[0].cache_control"])
        events = server.request("POST", "/v1/chat/completions",
                                {"messages": user("Hi"), "max_tokens": 1, "stream": True, "stream_options": {"x": 1, "include_usage": True}})[2]
        self.assertIn('"ignored":["stream_options.x"]', events)

    def test_a_date_in_the_prompt_is_said_and_may_be_pinned(self):
        chat = {"messages": user("Hi"), "max_tokens": 1}
        server = self.start("--chat-template", DATED)
        self.assertIs(server.post("/v1/chat/completions", chat)["kvasir"]["clock_in_prompt"], True)
        self.assertIn(time.strftime("%Y"), server.post("/apply-template", chat)["prompt"])
        pinned = self.start("--chat-template", DATED, "--template-date", "2024-02-29")
        self.assertNotIn("clock_in_prompt", pinned.post("/v1/chat/completions", chat)["kvasir"])
        self.assertEqual(pinned.post("/apply-template", chat)["prompt"], "29 Feb 2024[user] Hi")
        session = pinned.request("POST", "/v1/sessions", {"messages": user("Hi")})[2]["id"]
        self.assertEqual(pinned.post(f"/v1/sessions/{session}/generate", {"max_tokens": 1})["usage"]["prompt_tokens"],
                         pinned.post("/v1/chat/completions", chat)["usage"]["prompt_tokens"])
        plain = self.start()
        self.assertNotIn("clock_in_prompt", plain.post("/v1/chat/completions", chat)["kvasir"])
        for wrong in ("2023-02-29", "2024-2-29", "today", "", "2024-02-29x", "1960-01-01"):
            result = subprocess.run([BINARY, "serve", "--template-date", wrong], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 2, wrong)
            self.assertIn("--template-date: ", result.stderr)

    def test_a_thought_that_the_prompt_closes_is_not_opened_again(self):
        server = self.with_template("closed-thought.jinja")
        choices = server.post("/v1/chat/completions", case("closed-thought.json"))["choices"]
        self.assertEqual({choice["message"]["content"] for choice in choices} - {'"a"', '"b"'}, set())
        tools = case("tools-unseen.json")
        for fields in ({"tool_choice": "required"}, {"tool_choice": "required", "reasoning_budget_tokens": 3}):
            choices = server.post("/v1/chat/completions", {**case("closed-thought.json"), "response_format": None, "n": 4,
                                                           "max_tokens": 60, **tools, **fields})["choices"]
            for choice in choices:
                self.assertFalse(choice["message"].get("reasoning_content"), choice)
                self.assertIn(choice["finish_reason"], ("tool_calls", "length"))
        open_ = {**case("closed-thought.json"), "chat_template_kwargs": {}}
        self.assertEqual(server.request("POST", "/v1/chat/completions", open_)[0], 200)

    def test_a_grammar_begins_at_once_behind_a_thought_that_the_prompt_closes(self):
        server = self.with_template("closed-thought.jinja")
        for grammar, texts in (('root ::= "x" | "yz"', {"x", "yz"}), ('root ::= [0-9]{3}', None)):
            choices = server.post("/v1/chat/completions", {**case("closed-thought.json"), "response_format": None,
                                                           "grammar": grammar})["choices"]
            self.assertEqual(len(choices), 8)
            for choice in choices:
                message = choice["message"]
                self.assertFalse(message.get("reasoning_content"), choice)
                self.assertEqual(choice["finish_reason"], "stop", choice)
                if texts:
                    self.assertIn(message["content"], texts)
                else:
                    self.assertRegex(message["content"], "^[0-9]{3}$")

    def test_a_bare_word_is_the_template_of_that_name_or_an_error_at_the_start(self):
        server = self.start("--model", str(self.gguf({"tokenizer.chat_template": "gemma\n"})))
        self.assertEqual(server.post("/apply-template", {"messages": user("Hi")})["prompt"],
                         "<|bos|><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n")
        path = self.gguf({"tokenizer.chat_template": "vicuna"})
        result = subprocess.run([BINARY, "serve", "--port", "0", "--disk", "none", "--model", str(path)], capture_output=True, text=True,
                                timeout=60)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("'vicuna', which is neither a known name (chatml, llama2,", result.stderr)
        server = self.start("--model", str(path), "--chat-template", "chatml")
        self.assertIn("<|im_start|>user\nHi", server.post("/apply-template", {"messages": user("Hi")})["prompt"])

    def test_a_rendered_chat_gets_no_second_bos(self):
        path = self.gguf({"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ bos_token }}" + demo_template().replace("{{ bos_token }}", "")})
        server = self.start("--model", str(path))
        chat = {"messages": user("Hi"), "max_tokens": 1}
        tokens = server.post("/v1/chat/completions", chat)["usage"]["prompt_tokens"]
        prompt = server.post("/apply-template", chat)["prompt"]
        self.assertTrue(prompt.startswith("<|bos|>"), prompt)
        self.assertEqual(server.post("/completion", {"prompt": prompt, "n_predict": 1})["tokens_evaluated"], tokens)
        self.assertEqual(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]["prompt_tokens"], tokens)
        self.assertEqual(server.post("/completion", {"prompt": [prompt], "n_predict": 1})["tokens_evaluated"], tokens)
        # Two that the prompt has stay two; one that it lacks is added.
        self.assertEqual(server.post("/completion", {"prompt": "<|bos|>" + prompt, "n_predict": 1})["tokens_evaluated"], tokens + 1)
        self.assertEqual(server.post("/completion", {"prompt": prompt.removeprefix("<|bos|>"), "n_predict": 1})["tokens_evaluated"], tokens)

    def test_a_compressed_body_is_415(self):
        server = self.start()
        body = gzip.compress(json.dumps({"messages": user("Hi"), "max_tokens": 1}).encode())
        for path in ("/v1/chat/completions", "/completion", "/tokenize"):
            status, _, answer = server.request("POST", path, body, {"content-type": "application/json", "content-encoding": "gzip"})
            self.assertEqual(status, 415, answer)
            self.assertIn("uncompressed", answer["error"]["message"])

    def test_lists_with_an_equal_entry_for_each_layer(self):
        config = json.loads((DEMO / "config.json").read_text())
        layers = config["num_hidden_layers"]
        ask = {"prompt": "My name is", "max_tokens": 8, "temperature": 0}
        want = self.start("--model", str(self.gguf({}))).post("/v1/completions", ask)["choices"]
        path = self.gguf({"llama.attention.head_count_kv": [config["num_key_value_heads"]] * layers,
                          "llama.attention.head_count": [config["num_attention_heads"]] * layers,
                          "llama.feed_forward_length": [config["intermediate_size"]] * layers,
                          "llama.rope.freq_base": int(config["rope_theta"])})
        self.assertEqual(self.start("--model", str(path)).post("/v1/completions", ask)["choices"], want)

    def test_text_that_safe_marks_escapes_what_is_added_as_in_jinja2(self):
        server = self.with_template("safe-text.jinja")
        self.assertEqual(server.post("/apply-template", case("chat-angle.json"))["prompt"], "Use a &lt; b")


if __name__ == "__main__":
    unittest.main()
