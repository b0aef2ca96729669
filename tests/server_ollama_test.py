#!/usr/bin/env python3
"""Ollama's /api/chat and /api/generate of the bundled model, through the `ollama` package.

    server_ollama_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import sys
import tempfile
import unittest

try:
    import ollama
except ImportError:
    print("skipped: needs the Python package ollama")
    sys.exit(77)

from server_harness import Server, WithServer, fim_model

KEY = "The brass key is in the blue drawer."
WHERE = "Where is the brass key?"
CALLS = "You are Kvasir, a small assistant that remembers. You can call weather and clock."


def asked(text, system):
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: the name of the city
    """
    return "rain, 12 degrees"


class Ollama(WithServer):
    flags = ("--temperature", "0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = ollama.Client(host=cls.server.url)

    def test_a_chat_whole_and_streamed(self):
        for model in ("kvasir-demo", "kvasir-demo:latest"):
            answer = self.client.chat(model, asked(WHERE, KEY))
            self.assertIn("blue drawer", answer.message.content)
            self.assertEqual((answer.done, answer.done_reason, answer.message.role), (True, "stop", "assistant"))
        pieces = list(self.client.chat("kvasir-demo", asked(WHERE, KEY), stream=True))
        self.assertEqual("".join(piece.message.content for piece in pieces), answer.message.content)
        self.assertEqual([piece.done for piece in pieces], [False] * (len(pieces) - 1) + [True])
        last = pieces[-1]
        self.assertEqual((last.prompt_eval_count, last.eval_count), (answer.prompt_eval_count, answer.eval_count))
        self.assertGreater(last.total_duration, 0)
        same = self.server.post("/v1/chat/completions", {"messages": asked(WHERE, KEY)})
        self.assertEqual(same["usage"]["prompt_tokens"], answer.prompt_eval_count)
        status, headers, text = self.server.request("POST", "/api/chat", {"messages": asked(WHERE, KEY)})
        self.assertEqual((status, headers["content-type"]), (200, "application/x-ndjson"))
        self.assertGreater(text.count("\n"), 1)

    def test_calls_and_their_results(self):
        messages = asked("What is the weather in Oslo?", CALLS)
        for stream in (False, True):
            got = self.client.chat("default", messages, tools=[weather], stream=stream)
            answers = list(got) if stream else [got]
            (call,) = [call for one in answers for call in one.message.tool_calls or []]
            self.assertEqual((call.function.name, call.function.arguments), ("weather", {"city": "Oslo"}))
        first = self.client.chat("default", messages, tools=[weather])
        messages += [first.message, {"role": "tool", "tool_name": "weather", "content": "rain, 12 degrees"}]
        second = self.client.chat("default", messages, tools=[weather])
        self.assertRegex(second.message.content, "rain.* 12 degrees")

    def test_generate_and_its_options(self):
        answer = self.client.generate("default", WHERE, system=KEY)
        self.assertIn("blue drawer", answer.response)
        pieces = list(self.client.generate("default", WHERE, system=KEY, stream=True))
        self.assertEqual("".join(piece.response for piece in pieces), answer.response)
        cut = self.client.generate("default", WHERE, system=KEY, options={"num_predict": 2, "num_ctx": 4096})
        self.assertEqual((cut.done_reason, cut.eval_count), ("length", 2))
        stopped = self.client.generate("default", WHERE, system=KEY, options={"stop": ["drawer"]})
        self.assertNotIn("drawer", stopped.response)
        ignored = self.server.post("/api/generate", {"prompt": "a", "stream": False, "options": {"num_ctx": 9}})
        self.assertEqual(ignored["kvasir"]["ignored"], ["options.num_ctx"])

    def test_a_format(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
        answer = self.client.chat("default", asked("Where does Anna live?", "Anna lives in Oslo."), format=schema,
                                  options={"num_predict": 200})
        self.assertRegex(answer.message.content, r'^\{\s*"city"')

    def test_what_there_is(self):
        self.assertEqual([model.model for model in self.client.list().models], ["kvasir-demo:latest"])
        self.assertEqual([model.model for model in self.client.ps().models], ["kvasir-demo:latest"])
        shown = self.client.show("kvasir-demo")
        self.assertNotIn("tools", shown.capabilities)  # the template does not show them
        self.assertEqual(shown.modelinfo["llama.context_length"], 2048)
        self.assertRegex(self.server.get("/api/version")["version"], r"^\d+\.\d+")

    def test_without_a_prompt_the_model_is_loaded_already(self):
        for answer in (self.client.chat("default", []), self.client.generate("default", "")):
            self.assertEqual((answer.done, answer.done_reason), (True, "load"))
        self.assertEqual(self.client.chat("default", []).message.content, "")
        self.assertEqual(self.client.generate("default", "", keep_alive=0).done_reason, "unload")
        with self.assertRaises(ollama.ResponseError):
            self.client.generate("gpt", "")

    def test_a_raw_prompt_is_what_a_completion_reads(self):
        chat = self.server.post("/apply-template", {"messages": asked(WHERE, KEY)})["prompt"]
        raw = self.client.generate("default", chat, raw=True)
        self.assertEqual(raw.response, self.client.generate("default", WHERE, system=KEY).response)
        self.assertIsNone(raw.context)
        same = self.server.post("/v1/completions", {"prompt": chat, "max_tokens": 9})
        cut = self.client.generate("default", chat, raw=True, options={"num_predict": 9})
        self.assertEqual(cut.response, same["choices"][0]["text"])

    def test_context_goes_on_from_an_answer(self):
        first = self.client.generate("default", WHERE, system=KEY)
        ids = first.context
        self.assertEqual(len(ids), first.prompt_eval_count + first.eval_count)
        last = list(self.client.generate("default", WHERE, system=KEY, stream=True))[-1]
        self.assertEqual(last.context, ids)
        body = {"prompt": WHERE, "context": list(ids), "stream": False}
        second = self.server.post("/api/generate", body)
        self.assertEqual(second["context"][:len(ids)], list(ids))
        self.assertGreaterEqual(second["kvasir"]["reused"]["pool"], len(ids) - 1, second["kvasir"])
        alone = self.server.post("/v1/completions", {"prompt": second["context"][:second["prompt_eval_count"]],
                                                     "max_tokens": 100, "cache_prompt": False})
        self.assertEqual(alone["choices"][0]["text"], second["response"])

    def test_embeddings(self):
        answer = self.client.embed("kvasir-demo:latest", [KEY, WHERE])
        same = self.server.post("/v1/embeddings", {"input": [KEY, WHERE]})
        self.assertEqual([list(one) for one in answer.embeddings], [one["embedding"] for one in same["data"]])
        self.assertEqual(answer.prompt_eval_count, same["usage"]["prompt_tokens"])
        self.assertGreater(answer.total_duration, 0)
        self.assertEqual(list(self.client.embeddings("default", KEY).embedding), same["data"][0]["embedding"])
        self.assertEqual(len(self.client.embed("default", KEY, dimensions=3).embeddings[0]), 3)
        self.assertEqual(len(self.client.embed("default", []).embeddings), 0)
        self.assertEqual(len(self.client.embeddings("default", "").embedding), 0)
        for body, text in (({"input": ["a", ""]}, "input[1]: is empty"), ({"input": "a", "dimensions": 0}, "dimensions: 0 "),
                           ({"input": ["word " * 4000]}, "input[0]: has "), ({"input": "a", "model": "gpt"}, "model: unknown")):
            status, _, error = self.server.request("POST", "/api/embed", body)
            self.assertEqual(status, 404 if "model" in body else 400)
            self.assertTrue(error["error"].startswith(text), error)

    def test_errors_are_texts(self):
        for call, status, text in (
                (lambda: self.client.chat("gpt", asked("a", "b")), 404, "model: unknown model"),
                (lambda: self.client.chat("default", [{"role": "critic", "content": "a"}]), 400, "messages[0].role: "),
                (lambda: self.client.chat("default", asked("word " * 4000, "b")), 400, "messages: has "),
                (lambda: self.client.generate("default", "a", options={"temperature": -1}), 400,
                 "options.temperature: "),
                (lambda: self.client.generate("default", "a", suffix="b"), 400, "suffix: "),
                (lambda: self.client._request_raw("POST", "/api/chat", json={"messages": asked("a", "b"), "tools": True}),
                 400, "tools: "),
                (lambda: self.client._request_raw("POST", "/api/generate", json={"prompt": "a", "format": 5}), 400,
                 "format: "),
                (lambda: self.client._request_raw("POST", "/api/chat", json={"messages": asked("a", "b"), "think": "a lot"}),
                 400, "think: "),
                (lambda: self.client._request_raw("GET", "/api/nothing"), 404, "unknown path /api/nothing"),
                (lambda: self.client.generate("default", "a", raw=True, system="b"), 400, "system: "),
                (lambda: self.client.generate("default", "a", raw=True, context=[1]), 400, "context: "),
                (lambda: self.client.generate("default", "a", context=[-1]), 400, "context: "),
                (lambda: self.client.pull("x"), 501, "/api/pull is not available")):
            with self.subTest(text), self.assertRaises(ollama.ResponseError) as raised:
                call()
            self.assertEqual(raised.exception.status_code, status)
            self.assertTrue(raised.exception.error.startswith(text), raised.exception.error)


class FillsIn(unittest.TestCase):
    def test_a_suffix(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--model", str(fim_model(folder)), "--temperature", "0") as server:
                client = ollama.Client(host=server.url)
                answer = client.generate("default", "The brass key", suffix="drawer.", options={"num_predict": 5})
                same = server.post("/infill", {"input_prefix": "The brass key", "input_suffix": "drawer.",
                                               "n_predict": 5, "temperature": 0})
                self.assertEqual(answer.response, same["content"])
                self.assertEqual(answer.prompt_eval_count, same["tokens_evaluated"])
                self.assertIn("insert", client.show("default").capabilities)


class Thinks(unittest.TestCase):
    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}"
                "{% if enable_thinking is defined and not enable_thinking %}{{ '</think>' }}{% endif %}{% endif %}")

    def test_a_thought_is_apart(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write(self.TEMPLATE)
            file.flush()
            with Server("--chat-template-file", file.name, "--temperature", "0", "--reasoning-budget", "4") as server:
                client = ollama.Client(host=server.url)
                self.assertTrue(client.chat("default", asked(WHERE, KEY), think=True).message.thinking)
                self.assertTrue(client.chat("default", asked(WHERE, KEY), think="high").message.thinking)
                pieces = list(client.chat("default", asked(WHERE, KEY), think=True, stream=True))
                self.assertTrue("".join(piece.message.thinking or "" for piece in pieces))
                self.assertFalse(client.chat("default", asked(WHERE, KEY), think=False).message.thinking)
                self.assertIn("thinking", client.show("default").capabilities)


class Busy(WithServer):
    flags = ("--parallel", "1", "--max-queued", "4", "--max-queue-ms", "3600000", "--temperature", "0")
    LONG = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True}

    def test_a_full_queue_is_a_429(self):
        """The package tries nothing again: its caller does."""
        client = ollama.Client(host=self.server.url)
        asks = (lambda: client.chat("default", asked(WHERE, KEY)).message.content,
                lambda: "".join(piece.message.content for piece in client.chat("default", asked(WHERE, KEY), stream=True)),
                lambda: client.generate("default", WHERE, system=KEY).response)
        for ask in asks:  # it is connected: later calls take no time
            self.assertIn("blue drawer", ask())
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            others = [pool.submit(self.server.request, "POST", "/v1/completions", self.LONG) for _ in range(5)]
            self.server.until("four wait", lambda: self.server.metric("vllm:num_requests_waiting") == 4)
            for ask in asks:
                with self.assertRaises(ollama.ResponseError) as refused:
                    ask()
                self.assertEqual(refused.exception.status_code, 429)
                self.assertIn("queue", refused.exception.error)
            self.assertTrue(all(other.result()[0] == 200 for other in others))
        for ask in asks:
            self.assertIn("blue drawer", ask())


if __name__ == "__main__":
    unittest.main()
