#!/usr/bin/env python3
"""What llama.cpp's page and the editors' plugins send, as they send it: each gets what it reads.

    server_transcripts_test.py [KVASIR_BINARY] [unittest arguments]

The requests are those of llama.vim (January 2026), llama.vscode (August 2026), and the page of llama-server, as it is
(tools/ui) and as it was in 2025.
"""

import json
import tempfile
import unittest

from server_harness import Server, WithServer, fim_model, sse

MAIN = "import os\n\n\ndef names(folder):\n    found = []\n"
REST = "    return found\n"
CHUNKS = [{"text": "def size(path):\n    return os.stat(path).st_size\n", "time": [1, 5000 + i], "filename": f"f{i}.py"}
          for i in range(3)]
VIM_TIMINGS = ("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second")
VIM_FIELDS = ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
              "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
              "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached"]


def vim_infill(prompt, extra=CHUNKS, **fields):
    return {"id_slot": 0, "input_prefix": MAIN, "input_suffix": REST, "input_extra": extra, "prompt": prompt,
            "n_predict": 128, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90,
            "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 500,
            "t_max_predict_ms": 250, "response_fields": VIM_FIELDS, "model": "", **fields}


class Editors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.server = Server("--model", fim_model(folder.name))
        cls.addClassCleanup(cls.server.stop)

    def test_llama_vim_completes(self):
        # A chunk of the ring is read ahead, then the text at the cursor is asked for at each key.
        warmed = self.server.post("/infill", {
            "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": CHUNKS, "prompt": "", "n_predict": 0,
            "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1,
            "t_max_predict_ms": 1, "response_fields": [""], "model": ""})
        self.assertEqual(warmed, {})
        seen = []
        for typed in ("    for", "    for n", "    for na"):
            answer = self.server.post("/infill", vim_infill(typed))
            self.assertLessEqual({"content", "truncated", "tokens_cached", *(f"timings/{key}" for key in VIM_TIMINGS)},
                                 set(answer))
            seen.append(answer["timings/prompt_n"])
            # No line after the first one is indented less than the line at the cursor.
            for line in answer["content"].split("\n")[1:]:
                self.assertTrue(line.startswith("    ") or not line.strip(), answer["content"])
        self.assertLess(max(seen), 60, "files that were read ahead are not read again")

    def test_the_speculative_request_and_other_samplers(self):
        answer = self.server.post("/infill", vim_infill("    for", t_max_predict_ms=1000, seed=3))
        self.assertEqual(answer, {**self.server.post("/infill", vim_infill("    for", t_max_predict_ms=1000, seed=3)),
                                  **{key: answer[key] for key in answer if key.startswith("timings")}})
        settings = self.server.post("/infill", {**vim_infill("x"), "response_fields": ["generation_settings"]})
        settings = settings["generation_settings"]
        self.assertEqual(settings["samplers"], ["top_k", "top_p", "infill"])
        self.assertEqual((settings["temperature"], settings["min_p"]), (1, 0))

    def test_llama_vim_instructs(self):
        messages = [{"role": "system", "content": "You are a code-editing assistant."},
                    {"role": "user", "content": "Rename f to g."}]
        self.server.post("/v1/chat/completions", {
            "id_slot": 0, "messages": messages, "samplers": [], "n_predict": 0, "stream": False, "cache_prompt": True,
            "response_fields": [""], "model": ""})
        status, _, text = self.server.request("POST", "/v1/chat/completions", {
            "id_slot": 0, "messages": messages, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"],
            "stream": True, "cache_prompt": True, "model": "", "max_tokens": 20})
        events, done = sse(text)
        self.assertEqual((status, done), (200, True))
        self.assertTrue("".join(c["delta"].get("content") or "" for e in events for c in e["choices"]))

    def test_llama_vscode(self):
        chunks = [{"text": chunk["text"], "time": 1766000000000, "filename": chunk["filename"]} for chunk in CHUNKS]
        self.server.post("/infill", {
            "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": chunks, "prompt": "", "n_predict": 0,
            "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1})
        answers = self.server.post("/infill", {
            "id_slot": 0, "input_prefix": MAIN, "input_suffix": REST, "input_extra": chunks, "prompt": "    for",
            "n_predict": 128, "n_cmpl": 3, "top_k": 40, "top_p": 0.99, "stream": False,
            "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "n_indent": 4, "t_max_prompt_ms": 500,
            "t_max_predict_ms": 2500})
        self.assertEqual(len(answers), 3)
        for answer in answers:
            self.assertIsInstance(answer["content"], str)
            self.assertLessEqual(set(VIM_TIMINGS), set(answer["timings"]))
        models = self.server.get("/v1/models")["data"]
        self.assertIn("meta", models[0])
        self.assertIn("n_ctx", self.server.get("/props")["default_generation_settings"])
        prompt = self.server.post("/apply-template", {"messages": [{"role": "user", "content": "Hi."}],
                                                      "tools": [], "tool_choice": "auto"})["prompt"]
        counted = self.server.post("/tokenize", {"content": prompt, "add_special": False, "parse_special": True})
        self.assertGreater(len(counted["tokens"]), 2)


class Page(WithServer):
    """The page of llama-server, whose server is another one."""

    def stream(self, path, body):
        status, headers, text = self.server.request("POST", path, body, {
            "Content-Type": "application/json", "X-Conversation-Id": "9c1f::default"})
        self.assertEqual((status, headers["content-type"].split(";")[0]), (200, "text/event-stream"), text)
        return sse(text)

    def test_a_conversation(self):
        props = self.server.get("/props")
        self.assertLessEqual({"default_generation_settings", "total_slots", "model_path", "modalities", "chat_template",
                              "bos_token", "build_info"}, set(props))
        self.assertEqual(self.server.get("/props?model=x&autoload=false"), props)
        # What the page shows as the server's defaults, and sends back where a user has set it.
        params = props["default_generation_settings"]["params"]
        sent = {key: params[key] for key in ("temperature", "top_k", "top_p", "min_p", "xtc_probability",
                                             "repeat_last_n", "repeat_penalty", "presence_penalty",
                                             "frequency_penalty", "dry_multiplier", "samplers")}
        model = self.server.get("/v1/models")["data"][0]["id"]
        messages = [{"role": "system", "content": "Anna lives in Oslo."},
                    {"role": "user", "content": "Where does Anna live?"}]
        known = 0
        for more in ({}, {**sent, "typ_p": 1, "dynatemp_range": 0, "dynatemp_exponent": 1, "xtc_threshold": 0.1,
                          "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "max_tokens": -1,
                          "backend_sampling": False, "timings_per_token": True, "thinking_budget_tokens": 512}):
            self.assertFalse(any(slot["is_processing"] for slot in self.server.get("/slots?model=" + model)))
            events, done = self.stream("/v1/chat/completions", {
                "messages": messages, "stream": True, "return_progress": True, "model": model,
                "reasoning_format": "auto", "chat_template_kwargs": {"enable_thinking": False},
                "reasoning_control": True, "temperature": 0, **{**more, "temperature": 0}})
            self.assertTrue(done)
            text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
            self.assertTrue(text)
            self.assertTrue(all(event["id"] and event["model"] == model for event in events))
            progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
            self.assertLessEqual({"total", "cache", "processed", "time_ms"}, set(progress[0]))
            timings = [event["timings"] for event in events if "timings" in event]
            self.assertGreater(timings[-1]["predicted_n"], 0)
            self.assertGreaterEqual(timings[-1]["cache_n"], known)
            messages += [{"role": "assistant", "content": text}]
            # The page reads the answer ahead, as part of the next prompt.
            ahead = self.server.post("/v1/chat/completions", {"messages": messages, "stream": False, "n_predict": 0,
                                                              "model": model})
            known = ahead["usage"]["prompt_tokens"] - 2
            messages += [{"role": "user", "content": "And where does Tarik work?"}]

    def test_an_answer_that_is_continued(self):
        events, done = self.stream("/v1/chat/completions", {
            "messages": [{"role": "system", "content": "Anna lives in Oslo."},
                         {"role": "user", "content": "Where does Anna live?"},
                         {"role": "assistant", "content": "Anna lives"}],
            "stream": True, "return_progress": True, "reasoning_format": "none", "chat_template_kwargs": {},
            "reasoning_control": True, "continue_final_message": True, "add_generation_prompt": False,
            "temperature": 0})
        self.assertTrue(done)
        self.assertTrue("".join(c["delta"].get("content") or "" for e in events for c in e["choices"]).startswith(" in"))

    def test_the_notebook(self):
        events, done = self.stream("/completion", {
            "cache_prompt": True, "return_progress": True, "prompt": "The key is", "stream": True, "temperature": 0.8,
            "max_tokens": -1, "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
            "xtc_probability": 0, "xtc_threshold": 0.1, "typical_p": 1, "repeat_last_n": 64, "repeat_penalty": 1,
            "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75,
            "dry_allowed_length": 2, "dry_penalty_last_n": -1, "backend_sampling": False, "timings_per_token": True,
            "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]})
        self.assertFalse(done)
        self.assertEqual([event["stop"] for event in events if "stop" in event and event["stop"]], [True])
        self.assertIn("model", events[-1])
        self.assertIn("timings", events[-1])

    def test_paths_that_are_not_there_say_so_in_json(self):
        for method, path in (("GET", "/tools"), ("DELETE", "/v1/stream/9c1f"), ("GET", "/cors-proxy"),
                             ("POST", "/v1/chat/completions/control")):
            status, _, answer = self.server.request(method, path, {"id": "x", "action": "end_reasoning"}
                                                    if method == "POST" else None)
            self.assertEqual((status, set(answer)), (404, {"error"}))

    def test_a_prompt_that_does_not_fit(self):
        status, _, answer = self.server.request("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "word " * 4000}], "stream": True, "return_progress": True})
        self.assertEqual((status, answer["error"]["type"]), (400, "exceed_context_size_error"))
        self.assertGreater(answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"])

    def test_the_page_of_2025(self):
        events, done = self.stream("/v1/chat/completions", {
            "messages": [{"role": "system", "content": "You are Kvasir."}, {"role": "user", "content": "Hello!"}],
            "stream": True, "cache_prompt": True, "reasoning_format": "none", "samplers": "edkypmxt",
            "temperature": 0.8, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_k": 40, "top_p": 0.95,
            "min_p": 0.05, "typical_p": 1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1, "repeat_last_n": 64,
            "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0,
            "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "max_tokens": -1,
            "timings_per_token": True})
        self.assertTrue(done)
        pieces = [event for event in events for choice in event["choices"] if choice["delta"].get("content")]
        self.assertTrue(pieces)
        self.assertTrue(all("timings" in event for event in pieces))


if __name__ == "__main__":
    unittest.main()
