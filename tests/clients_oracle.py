#!/usr/bin/env python3
"""Clients as they are installed from PyPI and npm, against a server of the bundled model.

    KVASIR_BINARY=build/release/kvasir clients_oracle.py [unittest arguments]

instructor, LangChain, pydantic-ai, the Vercel AI SDK, `llm`, lm-eval and openai. They get a separate Python
environment (tests/clients/requirements.txt), which the first run makes in build/clients; npm puts the AI SDK there too.
Without a registry the test is skipped (77); without node only the AI SDK's.
"""

import asyncio
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from clients_python import HOME, ROOT, run_in_own_environment

HERE = pathlib.Path(__file__).resolve().parent
MODEL = ROOT / "models/kvasir-demo"

if __name__ == "__main__":
    run_in_own_environment()

import httpx  # noqa: E402: in the environment of the clients
import instructor
import openai
import pydantic
from instructor.core.exceptions import IncompleteOutputException
from server_harness import Server

SYSTEM = "You are Kvasir, a small assistant that remembers. You can call weather and clock."
RESULTS = {"weather": "rain, 12 degrees", "clock": "19:28"}
CITIES = ["Oslo", "Vienna", "Prague", "Bergen", "Hanoi"]


class Place(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)


class Loose(pydantic.BaseModel):
    """What any JSON object is: modes that only ask for JSON leave the rest to the prompt, and the model is small."""
    model_config = pydantic.ConfigDict(extra="allow")


def first_that_ends(ask, *cut):
    """ask(seed) for the first seed whose answer ends: nothing but a prompt tells the model to be brief. `cut`: what
    the client raises where `max_tokens` cut an answer."""
    for seed in range(30):
        try:
            return ask(seed)
        except cut:
            pass
    raise AssertionError("no answer ended")


def weather(city: str) -> str:
    """The weather in a city."""
    return RESULTS["weather"]


def clock() -> str:
    """The time of day."""
    return RESULTS["clock"]


def questions():
    """(text, tool) for each of ten turns."""
    for turn in range(10):
        if turn % 3 == 2:
            yield "How late is it?", "clock"
        else:
            yield f"What is the weather in {CITIES[turn % len(CITIES)]}?", "weather"


class Clients(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)
        cls.addClassCleanup(cls.server.stop)
        cls.url = cls.server.url + "/v1"
        cls.openai = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0)

    def receipts_of(self, answers):
        """Each receipt adds up, and each prompt reuses the one before, with its answer except the last token."""
        known = 0
        for answer in answers:
            receipt, usage = answer["kvasir"], answer["usage"]
            reused = sum(receipt["reused"].values())
            self.assertEqual(receipt["computed"] + reused, usage["prompt_tokens"])
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], reused)
            self.assertGreaterEqual(reused, known, receipt)
            known = usage["prompt_tokens"] + usage["completion_tokens"] - 1


class Instructor(Clients):
    def ask(self, mode, model, **fields):
        client = instructor.from_openai(self.openai, mode=mode)
        return client.chat.completions.create(
            model="default", response_model=model, max_retries=0, max_tokens=400, **{"temperature": 0, **fields},
            messages=[{"role": "user", "content": "Anna lives in Oslo. Where does Anna live?"}])

    def test_each_mode_gives_its_model(self):
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
            with self.subTest(mode):
                self.assertIsInstance(self.ask(mode, Place), Place)
        self.assertIsInstance(first_that_ends(
            lambda seed: self.ask(instructor.Mode.JSON, Loose, temperature=1, seed=seed),
            IncompleteOutputException), Loose)

    def test_a_stream_of_parts(self):
        client = instructor.from_openai(self.openai, mode=instructor.Mode.TOOLS)
        *_, last = client.chat.completions.create_partial(
            model="default", response_model=Place, max_retries=0, temperature=0, max_tokens=400,
            messages=[{"role": "user", "content": "Anna lives in Oslo. Where does Anna live?"}])
        self.assertIsInstance(Place.model_validate(last.model_dump()), Place)


class LangChain(Clients):
    def model(self, **fields):
        from langchain_openai import ChatOpenAI
        return ChatOpenAI(**{"model": "default", "base_url": self.url, "api_key": "none", "max_retries": 0,
                             "temperature": 0, "max_tokens": 100, **fields})

    def test_structured_output(self):
        from langchain_core.exceptions import OutputParserException
        for method in ("json_schema", "function_calling"):
            for strict in (None, True):
                with self.subTest(method, strict=strict):
                    chain = self.model().with_structured_output(Place, method=method, strict=strict)
                    self.assertIsInstance(chain.invoke("Anna lives in Oslo. Where does Anna live?"), Place)
        self.assertIsInstance(first_that_ends(
            lambda seed: self.model(temperature=1, seed=seed).with_structured_output(Loose, method="json_mode").invoke(
                "Anna lives in Oslo. Where does Anna live? Answer in JSON."),
            openai.LengthFinishReasonError, OutputParserException), Loose)

    def test_an_agent_of_ten_turns(self):
        from langchain.agents import create_agent
        answers = []

        def keep(response):
            response.read()
            answers.append(response.json())

        with httpx.Client(event_hooks={"response": [keep]}) as client:
            agent = create_agent(self.model(http_client=client), tools=[weather, clock], system_prompt=SYSTEM)
            messages, used = [], []
            for text, _ in questions():
                messages = agent.invoke({"messages": [*messages, {"role": "user", "content": text}]})["messages"]
                self.assertFalse(messages[-1].tool_calls)
                self.assertTrue(messages[-1].content)
            used = [message.name for message in messages if message.type == "tool"]
        self.assertEqual(used, [tool for _, tool in questions()])
        self.assertEqual(len(answers), 20)
        self.receipts_of(answers)


class PydanticAi(Clients):
    def test_output_types(self):
        from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.exceptions import UnexpectedModelBehavior
        from pydantic_ai.providers.openai import OpenAIProvider

        def ask(output, **settings):
            model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=self.url, api_key="none"))
            agent = Agent(model, output_type=output, retries=0,
                          model_settings={"temperature": 0, "max_tokens": 400, **settings})
            return asyncio.run(agent.run("Anna lives in Oslo. Where does Anna live?")).output

        for output, kind in ((Place, Place), (ToolOutput(Place), Place), (NativeOutput(Place), Place), (int, int),
                             ([Place, Loose], (Place, Loose))):
            with self.subTest(output):
                self.assertIsInstance(ask(output), kind)
        self.assertIsInstance(first_that_ends(
            lambda seed: ask(PromptedOutput(Loose), temperature=1, seed=seed), UnexpectedModelBehavior), Loose)


class AiSdk(Clients):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("node") or not shutil.which("npm"):
            raise unittest.SkipTest("needs node and npm (Debian: nodejs, npm)")
        folder = HOME / "node"
        folder.mkdir(parents=True, exist_ok=True)
        for file in (HERE / "clients").glob("*.*"):
            shutil.copy(file, folder)
        mark, wanted = folder / "installed", (folder / "package-lock.json").read_text()
        if not mark.exists() or mark.read_text() != wanted:
            if subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=folder).returncode:
                raise unittest.SkipTest("npm could not install tests/clients/package-lock.json")
            mark.write_text(wanted)
        cls.script = folder / "generate_object.mjs"
        super().setUpClass()

    def test_objects_streams_and_calls(self):
        done = subprocess.run(["node", self.script, self.server.url], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        self.assertEqual(got["finishReason"], "stop")
        for place in (got["object"], got["streamed"]):
            self.assertIsInstance(Place.model_validate(place), Place)
        self.assertEqual(got["object"], got["streamed"])
        self.assertGreater(got["partials"], 1)
        self.assertIn(got["choice"], ("Oslo", "Rome"))
        self.assertTrue(all(1 <= one["day"] <= 3 for one in got["list"]))
        self.assertEqual((got["toolFinish"], got["calls"]),
                         ("tool-calls", [{"name": "weather", "input": {"city": "Oslo"}}]))


class Llm(Clients):
    def test_schema(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "extra-openai-models.yaml").write_text(
                f"- model_id: kvasir\n  model_name: default\n  api_base: {self.url}\n"
                "  supports_schema: true\n  supports_tools: true\n")
            schema = Place.model_json_schema()
            for given in (json.dumps(schema), "city, days int"):
                for stream in ([], ["--no-stream"]):
                    done = subprocess.run(
                        [pathlib.Path(sys.executable).parent / "llm", "-m", "kvasir", "--key", "none", "--schema", given,
                         "-o", "max_tokens", "400", "-o", "temperature", "0", *stream, "Where does Anna live?"],
                        capture_output=True, text=True, timeout=120, env={**os.environ, "LLM_USER_PATH": folder})
                    self.assertEqual(done.returncode, 0, done.stderr)
                    answer = json.loads(done.stdout)
                    self.assertEqual((set(answer), type(answer["days"])), ({"city", "days"}, int))


class LmEval(Clients):
    flags = ("--kv-format", "f32")  # as transformers keep it

    def test_multiple_choice_is_what_transformers_compute(self):
        import lm_eval
        from lm_eval.tasks import TaskManager
        rows = []
        for i, city in enumerate(CITIES * 4):
            name = ("Anna", "Tarik", "Mira", "Bruno")[i // len(CITIES)]
            rows.append({"text": f"<|system|>{name} lives in {city}.<|end|><|user|>Where does {name} live?<|end|>"
                                 f"<|assistant|>{name} lives in", "choices": CITIES, "gold": CITIES.index(city)})
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder) / "recall.json"
            data.write_text("\n".join(map(json.dumps, rows)))
            (pathlib.Path(folder) / "recall.yaml").write_text(
                "task: kvasir_recall\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
                f"    test: {data}\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: text\n"
                "doc_to_choice: choices\ndoc_to_target: gold\nmetric_list:\n  - metric: acc\n")

            def evaluate(model, arguments):
                got = lm_eval.simple_evaluate(
                    model=model, model_args=arguments, tasks=["kvasir_recall"], log_samples=True, bootstrap_iters=0,
                    task_manager=TaskManager(include_path=folder, include_defaults=False))
                samples = sorted(got["samples"]["kvasir_recall"], key=lambda sample: sample["doc_id"])
                return (got["results"]["kvasir_recall"]["acc,none"],
                        [[tuple(one) for one in sample["filtered_resps"]] for sample in samples])

            ours, likelihoods = evaluate("local-completions", {
                "model": "default", "base_url": self.url + "/completions", "tokenizer": str(MODEL),
                "tokenizer_backend": "huggingface", "tokenized_requests": True, "num_concurrent": 2, "max_retries": 1,
                "max_length": 2048})
            theirs, expected = evaluate("hf", {"pretrained": str(MODEL), "dtype": "float32", "device": "cpu",
                                               "batch_size": 4, "max_length": 2048})
        self.assertEqual(ours, theirs)
        self.assertGreater(ours, 0.8)
        self.assertEqual(len(likelihoods), len(rows))
        for row, one in zip(likelihoods, expected):
            for (value, greedy), (wanted, wanted_greedy) in zip(row, one):
                self.assertAlmostEqual(value, wanted, delta=0.001)
                self.assertEqual(greedy, wanted_greedy)


class OpenAi(Clients):
    TOOLS = [{"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
                                          "required": ["city"]}}},
             {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]

    def calls(self, text, **fields):
        """(name, arguments) of each call, and the finish reason; the same with and without a stream."""
        asked = {"model": "default", "temperature": 0, "max_tokens": 100, "tools": self.TOOLS, **fields,
                 "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]}
        choice = self.openai.chat.completions.create(**asked).choices[0]
        with self.openai.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion().choices[0]

        def read(one):
            return ([(call.function.name, json.loads(call.function.arguments))
                     for call in one.message.tool_calls or []], one.finish_reason)

        self.assertEqual(read(choice), read(streamed))
        return read(choice)

    def test_weather_and_clock(self):
        for choice in ("auto", "required"):
            with self.subTest(choice):
                self.assertEqual(self.calls("What is the weather in Oslo?", tool_choice=choice),
                                 ([("weather", {"city": "Oslo"})], "tool_calls"))
                self.assertEqual(self.calls("How late is it?", tool_choice=choice), ([("clock", {})], "tool_calls"))
        (name, _), = self.calls("Hello!", tool_choice={"type": "function", "function": {"name": "clock"}})[0]
        self.assertEqual(name, "clock")
        calls, finish = self.calls("Hello!", tool_choice="required")
        self.assertEqual((finish, len(calls) > 0), ("tool_calls", True))

    def test_parse(self):
        choice = self.openai.chat.completions.parse(
            model="default", temperature=0, max_tokens=100, response_format=Place,
            messages=[{"role": "user", "content": "Where does Anna live?"}]).choices[0]
        self.assertIsInstance(choice.message.parsed, Place)


if __name__ == "__main__":
    unittest.main()
