#!/usr/bin/env python3
"""The server as the users of llama.cpp's server meet it: /completion, /infill, /slots, and what its clients read
elsewhere.

    server_completion_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import math
import tempfile
import threading
import unittest

from server_harness import Server, WithServer, fim_model, sse, user

CHAT = "<|user|>The brass key is in the blue drawer. Where is the brass key?<|end|><|assistant|>"
ANSWER = "The brass key is in the blue drawer."
TIMINGS = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
           "predicted_per_token_ms", "predicted_per_second"}
FIELDS = {"content", "tokens", "stop", "stop_type", "stopping_word", "model", "prompt", "generation_settings",
          "tokens_predicted", "tokens_evaluated", "tokens_cached", "truncated", "has_new_line", "index", "id_slot",
          "timings", "kvasir", "system_fingerprint"}


class Completion(WithServer):
    flags = ("--parallel", "4")

    def complete(self, **fields):
        return self.server.post("/completion", {"prompt": CHAT, "temperature": 0} | fields)

    def stream(self, path="/completion", **fields):
        body = {"prompt": CHAT, "temperature": 0, "stream": True} | fields
        status, _, text = self.server.request("POST", path, body)
        self.assertEqual(status, 200, text)
        return sse(text)

    def test_answer_has_llama_servers_fields(self):
        for path in ("/completion", "/completions"):
            answer = self.server.post(path, {"prompt": CHAT, "temperature": 0})
            self.assertEqual(set(answer), FIELDS)
            self.assertEqual((answer["content"], answer["stop"], answer["stop_type"]), (ANSWER, True, "eos"))
            self.assertEqual((answer["tokens"], answer["stopping_word"], answer["truncated"]), ([], "", False))
            self.assertTrue(answer["prompt"].endswith(CHAT), answer["prompt"])
            self.assertEqual(set(answer["timings"]) - {"draft_n", "draft_n_accepted"}, TIMINGS)
            self.assertEqual(answer["timings"]["cache_n"] + answer["timings"]["prompt_n"],
                             answer["tokens_evaluated"])
            self.assertEqual(answer["timings"]["predicted_n"], answer["tokens_predicted"])
            self.assertEqual(answer["tokens_evaluated"], answer["kvasir"]["prompt_tokens"])
            settings = answer["generation_settings"]
            self.assertEqual((settings["temperature"], settings["top_k"], settings["n_predict"], settings["seed"]),
                             (0, 40, -1, 2**32 - 1))

    def test_the_same_tokens_as_openais_path(self):
        ours = self.server.post("/v1/completions", {"prompt": CHAT, "temperature": 0, "max_tokens": 20,
                                                    "return_tokens": True})
        answer = self.complete(n_predict=20, return_tokens=True)
        self.assertEqual(answer["tokens"], ours["choices"][0]["tokens"])
        self.assertEqual(answer["system_fingerprint"], ours["system_fingerprint"])

    def test_prompts_of_all_forms(self):
        ids = self.server.post("/tokenize", {"content": CHAT, "add_special": True})["tokens"]
        half = self.server.post("/detokenize", {"tokens": ids[10:]})["content"]
        for prompt in (CHAT, ids, ids[:10] + [half], {"prompt_string": CHAT}, [CHAT]):
            self.assertEqual(self.complete(prompt=prompt)["content"], ANSWER)
        several = self.complete(prompt=[CHAT, ids, {"prompt_string": CHAT}])
        self.assertEqual([(one["index"], one["content"]) for one in several],
                         [(0, ANSWER), (1, ANSWER), (2, ANSWER)])
        self.assertEqual(len(self.complete(n_cmpl=2)), 2)

    def test_min_tokens_puts_off_the_end(self):
        def ask(path, **fields):
            prompt = {"messages": user("The brass key is in the blue drawer. Where is the brass key?")} if "chat" in path else {"prompt": CHAT}
            return self.server.post(path, prompt | {"temperature": 0, "return_token_ids": True, "max_tokens": 200} | fields)

        for path in ("/v1/chat/completions", "/v1/completions"):
            usual = ask(path)
            ids, tokens = usual["choices"][0]["token_ids"], usual["usage"]["completion_tokens"]
            self.assertEqual(usual["choices"][0]["finish_reason"], "stop")
            later = ask(path, min_tokens=tokens + 20)
            self.assertGreaterEqual(later["usage"]["completion_tokens"], tokens + 20)
            self.assertEqual(later["choices"][0]["token_ids"][:tokens - 1], ids[:tokens - 1])
            self.assertEqual(ask(path, min_tokens=1)["choices"][0]["token_ids"], ids)
            # Ids that end an answer are put off too.
            self.assertLess(ask(path, stop_token_ids=[ids[2]])["usage"]["completion_tokens"], 4)
            without = ask(path, stop_token_ids=[ids[2]], min_tokens=tokens)["choices"][0]["token_ids"]
            self.assertNotIn(ids[2], without[:tokens])
            self.assertEqual(without[:2], ids[:2])

    def test_lengths_and_stops(self):
        short = self.complete(n_predict=3)
        self.assertEqual((short["stop_type"], short["tokens_predicted"]), ("limit", 3))
        self.assertEqual(short["tokens_cached"], short["tokens_evaluated"] + 2)
        word = self.complete(stop=["blue"])
        self.assertEqual((word["stop_type"], word["stopping_word"]), ("word", "blue"))
        self.assertTrue(ANSWER.startswith(word["content"]))
        self.assertEqual(self.complete(n_predict=0)["content"], "")
        whole = self.complete(ignore_eos=True)
        self.assertEqual((whole["truncated"], whole["stop_type"]), (True, "limit"))
        self.assertEqual(whole["tokens_evaluated"] + whole["tokens_predicted"], 2048)

    def test_stream(self):
        events, done = self.stream(n_probs=2, timings_per_token=True)
        self.assertFalse(done)
        self.assertTrue(all("choices" not in event for event in events))
        *pieces, last = events
        self.assertEqual("".join(piece["content"] for piece in pieces), ANSWER)
        self.assertTrue(all(piece["stop"] is False for piece in pieces))
        self.assertTrue(all(set(piece["timings"]) == TIMINGS for piece in pieces))
        self.assertEqual((last["stop"], last["content"], last["stop_type"]), (True, "", "eos"))
        self.assertEqual(sum(len(piece["tokens"]) for piece in pieces), last["tokens_predicted"])
        self.assertEqual(sum(len(piece.get("completion_probabilities", [])) for piece in pieces),
                         last["tokens_predicted"])
        self.assertEqual(set(last), FIELDS)

    def test_progress(self):
        prompt = "Every word is read once. " * 60
        for path, more in (("/completion", {"prompt": prompt}),
                           ("/v1/completions", {"prompt": prompt}),
                           ("/v1/chat/completions", {"messages": user(prompt)})):
            events, _ = self.stream(path, n_predict=2, return_progress=True, cache_prompt=False, **more)
            progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
            self.assertGreaterEqual(len(progress), 1)
            self.assertEqual({key for one in progress for key in one}, {"total", "cache", "processed", "time_ms"})
            processed = [one["processed"] for one in progress]
            self.assertEqual(processed, sorted(processed))
            self.assertEqual(processed[-1], progress[-1]["total"])
            self.assertEqual(progress[-1]["total"], events[-1]["kvasir"]["prompt_tokens"])
            self.assertEqual(progress[-1]["cache"], 0)
            events, _ = self.stream(path, n_predict=1, **more)
            self.assertFalse(any("prompt_progress" in event for event in events))

    def test_probabilities(self):
        for one in self.complete(n_predict=4, n_probs=3)["completion_probabilities"]:
            self.assertEqual(set(one), {"id", "token", "bytes", "logprob", "top_logprobs"})
            self.assertEqual(len(one["top_logprobs"]), 3)
            self.assertEqual(one["top_logprobs"][0]["id"], one["id"])
            self.assertEqual(one["top_logprobs"][0]["logprob"], one["logprob"])
        sampled = self.complete(n_predict=8, n_probs=10, post_sampling_probs=True, temperature=1.5, top_k=3, top_p=1,
                                min_p=0, seed=1)
        for one in sampled["completion_probabilities"]:
            self.assertEqual(set(one), {"id", "token", "bytes", "prob", "top_probs"})
            self.assertEqual(len(one["top_probs"]), 3)
            self.assertAlmostEqual(sum(other["prob"] for other in one["top_probs"]), 1, places=4)
            self.assertIn(one["id"], [other["id"] for other in one["top_probs"]])

    def test_temperature_comes_after_the_cuts(self):
        prompt = {"prompt": "The key", "n_predict": 1, "n_probs": 10}
        logprobs = [one["logprob"] for one in self.complete(**prompt)["completion_probabilities"][0]["top_logprobs"]]
        for last in (True, False):
            temperature = 3.0
            weights = [math.exp(value / (1 if last else temperature)) for value in logprobs]
            kept = 0
            while kept < 10 and (sum(weights[:kept]) < 0.8 * sum(weights)) and weights[kept] >= 0.02 * weights[0]:
                kept += 1
            tempered = [math.exp(value / temperature) for value in logprobs[:kept]]
            order = ["top_k", "top_p", "min_p", "temperature"]
            got = self.complete(**prompt, post_sampling_probs=True, temperature=temperature, top_k=10, top_p=0.8,
                                min_p=0.02, seed=1, **({} if last else {"samplers": [order[-1], *order[:-1]]}))
            probs = [one["prob"] for one in got["completion_probabilities"][0]["top_probs"]]
            self.assertEqual(len(probs), kept)
            for prob, weight in zip(probs, tempered):
                self.assertAlmostEqual(prob, weight / sum(tempered), places=4)

    def test_seeds_biases_and_penalties(self):
        again = [self.complete(temperature=1.5, seed=7, n_predict=20, ignore_eos=True)["content"] for _ in range(2)]
        self.assertEqual(*again)
        first = self.complete(n_predict=1, return_tokens=True)["tokens"][0]
        banned = self.complete(n_predict=20, return_tokens=True, ignore_eos=True, logit_bias=[[first, False]])
        self.assertNotIn(first, banned["tokens"])
        word = self.complete(n_predict=20, return_tokens=True, ignore_eos=True, logit_bias=[["The", -100.0]])
        self.assertNotIn(first, word["tokens"])
        self.assertEqual(banned["generation_settings"]["logit_bias"],
                         [{"token": first, "bias": None}, {"token": 2, "bias": None}])  # the last: ignore_eos
        free = self.complete(n_predict=30, ignore_eos=True, repeat_penalty=50, repeat_last_n=0)
        self.assertEqual(free["content"], self.complete(n_predict=30, ignore_eos=True)["content"])
        self.assertNotEqual(free["content"], self.complete(n_predict=30, ignore_eos=True, repeat_penalty=50)["content"])

    def test_answers_under_a_grammar_and_a_schema(self):
        grammar = 'root ::= "yes" | "no"'
        answer = self.complete(grammar=grammar, n_probs=3, post_sampling_probs=True, temperature=1)
        self.assertIn(answer["content"], ("yes", "no"))
        self.assertEqual(answer["generation_settings"]["grammar"], grammar)
        first = answer["completion_probabilities"][0]  # of the legal tokens alone
        self.assertLessEqual({one["token"] for one in first["top_probs"]}, {"y", "ye", "yes", "n", "no"})
        self.assertGreater(first["prob"], 0)
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
        content = self.complete(json_schema=schema, temperature=1, seed=1)["content"]
        self.assertIsInstance(json.loads(content)["n"], int)

    def test_response_fields(self):
        self.assertEqual(self.complete(n_predict=1, response_fields=["content", "generation_settings/n_predict", "x"]),
                         {"content": "The", "generation_settings/n_predict": 1})

    def test_what_is_accepted_and_what_is_refused(self):
        self.complete(n_predict=1, id_slot=3, n_keep=0, n_cache_reuse=0, t_max_predict_ms=0,
                      samplers=["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
                                "temperature"])
        for name, value in (("dry_multiplier", 0.8), ("xtc_probability", 0.5), ("mirostat", 1), ("typical_p", 0.5),
                            ("dynatemp_range", 0.5), ("samplers", ["other"]), ("n_keep", -2),
                            ("n_cache_reuse", 256)):
            self.refused("/completion", {"prompt": "x", name: value}, name)
        ignored = self.complete(n_predict=1, strange=1, n_keep=4, n_discard=2)["kvasir"]["ignored"]
        self.assertEqual(sorted(ignored), ["n_discard", "strange"])

    def test_a_context_that_shifts_keeps_the_first_tokens(self):
        body = self.complete(prompt=list(range(5, 45)), n_predict=3000, n_keep=8, ignore_eos=True,
                             cache={"retention": {"policy": "sinks+window", "budget": 64}})
        self.assertEqual((body["tokens_predicted"], body["truncated"]), (3000, True))
        self.assertEqual(body["kvasir"]["retention"]["sinks"], 8)
        # A BOS is kept beside them; -1 is the prompt, up to half of the budget.
        for n_keep, prompt, kept in ((8, [1, *range(5, 44)], 9), (-1, list(range(5, 25)), 20), (-1, list(range(5, 45)), 32)):
            body = self.complete(prompt=prompt, n_predict=1, n_keep=n_keep, cache={"retention": {"policy": "sinks+window", "budget": 64}})
            self.assertEqual(body["kvasir"]["retention"]["sinks"], kept)

    def test_seed_minus_one_is_random_everywhere(self):
        for seed, texts in ((-1, 3), (7, 1)):
            body = {"max_tokens": 40, "ignore_eos": True, "temperature": 2, "seed": seed}
            chats = [self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi."}], **body})
                     for _ in range(3)]
            self.assertEqual(len({one["choices"][0]["message"]["content"] for one in chats}), texts)
            self.assertEqual(len({self.server.post("/completion", {"prompt": "Hi.", **body})["content"]
                                  for _ in range(3)}), texts)

    def test_the_default_samplers_are_taken_by_chats_too(self):
        """llama.cpp's page sends them with each chat."""
        chat = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 1}
        default = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
        for samplers in (default, "edskypmxt", None):
            answer = self.server.post("/v1/chat/completions", {**chat, "samplers": samplers})
            self.assertEqual(answer["kvasir"]["ignored"], [])
        cuts = {"top_k": 5, "top_p": 0.9, "temperature": 0.8}
        for samplers in (default[::-1], "ptk", 5):
            self.refused("/v1/chat/completions", {**chat, **cuts, "samplers": samplers}, "samplers")

    def test_a_prompt_that_does_not_fit(self):
        for path in ("/completion", "/v1/completions"):
            status, _, answer = self.server.request("POST", path, {"prompt": [5] * 3000})
            error = answer["error"]
            self.assertEqual((status, error["type"]), (400, "exceed_context_size_error"))
            self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (3000, 2048))

    def test_timings_and_fingerprint_of_openais_paths(self):
        chat = {"messages": user("Hi."), "temperature": 0, "max_tokens": 4}
        answer = self.server.post("/v1/chat/completions", chat)
        self.assertEqual(set(answer["timings"]) - {"draft_n", "draft_n_accepted"}, TIMINGS)
        self.assertEqual(answer["timings"]["predicted_n"], answer["usage"]["completion_tokens"])
        self.assertRegex(answer["system_fingerprint"], "^fp_[0-9a-f]{12}$")
        events, done = self.stream("/v1/chat/completions", **chat)
        self.assertTrue(done)
        self.assertEqual({event["system_fingerprint"] for event in events}, {answer["system_fingerprint"]})
        self.assertEqual([set(event.get("timings", ())) - {"draft_n", "draft_n_accepted"} for event in events[-2:]],
                         [set(), TIMINGS])

    def test_slots(self):
        slots = self.server.get("/slots")
        self.assertEqual([slot["id"] for slot in slots], [0, 1, 2, 3])
        self.assertFalse(any(slot["is_processing"] for slot in slots))
        prompt = {"prompt": CHAT, "temperature": 0, "ignore_eos": True, "stop": ["\0"]}
        running = threading.Thread(target=lambda: self.server.post("/completion", prompt))
        running.start()
        busy = []
        while running.is_alive() and not busy:
            busy = [slot for slot in self.server.get("/slots") if slot["is_processing"]]
        running.join()
        self.assertEqual(len(busy), 1)
        self.assertEqual(set(busy[0]), {"id", "is_processing", "n_ctx", "n_prompt_tokens", "n_cached_tokens",
                                        "n_decoded"})
        self.assertEqual(busy[0]["n_ctx"], 2048)
        self.assertGreater(busy[0]["n_prompt_tokens"], 10)
        for action, text in (("save", "--disk"), ("restore", "by itself"), ("erase", "DELETE /v1/cache")):
            status, _, answer = self.server.request("POST", f"/slots/0?action={action}", {"filename": "x"})
            self.assertEqual((status, answer["error"]["type"]), (501, "not_supported_error"))
            self.assertIn(text, answer["error"]["message"])

    def test_infill_without_the_tokens(self):
        status, _, answer = self.server.request("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
        self.assertEqual((status, answer["error"]["type"]), (501, "not_supported_error"))
        self.assertIn("prefix, suffix, middle", answer["error"]["message"])

    def test_what_clients_read_of_models_and_props(self):
        for model in self.server.get("/v1/models")["data"]:
            self.assertIn(model["id"], model["aliases"])
            self.assertEqual(model["meta"]["n_ctx"], 2048)
        props = self.server.get("/props")
        self.assertEqual(props["total_slots"], 4)
        self.assertEqual(props["default_generation_settings"]["params"]["seed"], 2**32 - 1)
        self.assertIn("messages", props["chat_template"])


class Echo(WithServer):
    """What lm-eval asks: the log probabilities of a continuation, from `echo` with `logprobs`."""

    def likelihood(self, context, continuation):
        """As lm-eval reads it: (sum of the log probabilities, whether greedy decoding gives it)."""
        prompt = context + continuation
        answer = self.server.post("/v1/completions", {
            "model": "default", "prompt": [prompt], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
            "echo": True})
        self.assertEqual(answer["kvasir"]["computed"], len(prompt))
        self.assertEqual(answer["kvasir"]["miss"]["reason"], "disabled")
        logprobs = answer["choices"][0]["logprobs"]
        self.assertEqual({len(column) for column in logprobs.values()}, {len(prompt) + 1})
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        values = logprobs["token_logprobs"][len(context):-1]
        tops = logprobs["top_logprobs"][len(context):-1]
        return sum(values), all(value == max(top.values()) for value, top in zip(values, tops))

    def ids(self, text, special=False):
        return self.server.post("/tokenize", {"content": text, "add_special": special})["tokens"]

    def test_the_likely_answer_wins(self):
        context = self.ids(CHAT, special=True)
        right, greedy = self.likelihood(context, self.ids(ANSWER))
        wrong, not_greedy = self.likelihood(context, self.ids(ANSWER.replace("blue", "red")))
        self.assertTrue(greedy)
        self.assertFalse(not_greedy)
        self.assertGreater(right, wrong)

    def test_they_are_those_of_generation(self):
        generated = self.server.post("/v1/completions", {"prompt": CHAT, "temperature": 0, "max_tokens": 8,
                                                         "logprobs": 1, "return_tokens": True})["choices"][0]
        context = self.ids(CHAT, special=True)
        whole = self.server.post("/v1/completions", {"prompt": context + generated["tokens"], "max_tokens": 0,
                                                     "echo": True, "logprobs": 1})["choices"][0]
        self.assertEqual(whole["logprobs"]["token_logprobs"][len(context):], generated["logprobs"]["token_logprobs"])
        self.assertEqual(whole["logprobs"]["top_logprobs"][len(context):], generated["logprobs"]["top_logprobs"])

    def test_offsets_and_stream(self):
        body = {"prompt": "The key is here.", "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0,
                "ignore_eos": True}
        choice = self.server.post("/v1/completions", body)["choices"][0]
        self.assertTrue(choice["text"].startswith(body["prompt"]))
        logprobs = choice["logprobs"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
            if not token.startswith("<|"):
                self.assertEqual(choice["text"][offset:offset + len(token)], token)
        for value in logprobs["token_logprobs"][1:]:
            self.assertTrue(-math.inf < value <= 0)
        events, done = sse(self.server.request("POST", "/v1/completions", body | {"stream": True})[2])
        self.assertTrue(done)
        joined = {key: [] for key in logprobs}
        text = ""
        for event in events:
            for one in event["choices"]:
                text += one["text"]
                for key, values in (one["logprobs"] or {}).items():
                    joined[key] += values
        self.assertEqual((text, joined), (choice["text"], logprobs))


class Infill(unittest.TestCase):
    def test_files_are_hits_whatever_is_typed(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--model", fim_model(folder)) as server:
                files = [{"filename": f"file{i}.py", "text": f"value_{i} = {i}\n" * 10} for i in range(3)]
                receipts = []
                for typed in ("x = va", "x = val", "x = valu"):
                    answer = server.post("/infill", {
                        "input_extra": files, "input_prefix": "def f():\n", "prompt": typed, "input_suffix": "\n",
                        "n_predict": 4, "temperature": 0})
                    self.assertEqual(answer["tokens_predicted"] > 0, True)
                    self.assertIn("<|fim_prefix|>def f():\n" + typed + "<|fim_suffix|>\n<|fim_middle|>",
                                  answer["prompt"])
                    receipts.append(answer["kvasir"])
                for receipt in receipts[1:]:
                    self.assertGreater(sum(receipt["reused"].values()), 0.9 * receipt["prompt_tokens"])
                events, done = sse(server.request("POST", "/infill", {
                    "input_prefix": "a", "input_suffix": "b", "n_predict": 3, "stream": True})[2])
                self.assertFalse(done)
                self.assertTrue(events[-1]["stop"])


if __name__ == "__main__":
    unittest.main()
