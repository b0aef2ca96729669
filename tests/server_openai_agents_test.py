#!/usr/bin/env python3
"""Agents of the `openai-agents` package on the bundled model: by responses, stored ones and chat completions.

    server_openai_agents_test.py [KVASIR_BINARY] [unittest arguments]
"""

import asyncio
import concurrent.futures
import sys
import typing
import unittest

try:
    import agents
    import openai
except ImportError:
    print("skipped: needs the Python package openai-agents")
    sys.exit(77)

import pydantic
from server_harness import WithServer

KEY = "The brass key is in the blue drawer."
WHERE = "Where is the brass key?"
CALLS = "You are Kvasir, a small assistant that remembers. You can call weather and clock."
ASK = "What is the weather in Oslo?"
City = typing.Annotated[str, pydantic.Field(max_length=12)]
BLOCK = 16

agents.set_tracing_disabled(True)  # else it is sent to OpenAI


def agent_of(client, chats=False, **fields):
    kind = agents.OpenAIChatCompletionsModel if chats else agents.OpenAIResponsesModel
    return agents.Agent(name="kvasir", model=kind(model="default", openai_client=client),
                        model_settings=agents.ModelSettings(max_tokens=60), **fields)


class Agents(WithServer, unittest.IsolatedAsyncioTestCase):
    flags = ("--temperature", "0")

    async def asyncSetUp(self):
        self.asked = []  # cities
        asyncio.get_running_loop().slow_callback_duration = 10  # else a busy machine fills the log
        self.client = openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    async def asyncTearDown(self):
        await self.client.close()

    def agent(self, chats=False, **fields):
        return agent_of(self.client, chats, **fields)

    def tools(self):
        @agents.function_tool
        def weather(city: City) -> str:
            """The weather in a city."""
            self.asked.append(city)
            return "rain, 12 degrees"

        @agents.function_tool
        def clock() -> str:
            """The time."""
            return "19:28"

        return [weather, clock]

    async def run_agent(self, given, agent, **fields):
        return await agents.Runner.run(agent, given, **fields)

    async def stream(self, given, agent):
        """The result, and the text of the events."""
        result = agents.Runner.run_streamed(agent, given)
        deltas = [event.data.delta async for event in result.stream_events()
                  if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
        return result, "".join(deltas)

    async def test_a_text_whole_and_streamed(self):
        for chats in (False, True):
            with self.subTest(chats=chats):
                whole = await self.run_agent(WHERE, self.agent(chats, instructions=KEY))
                self.assertIn("blue drawer", whole.final_output)
                streamed, text = await self.stream(WHERE, self.agent(chats, instructions=KEY))
                self.assertEqual((streamed.final_output, text), (whole.final_output, whole.final_output))

    async def test_a_call_and_its_result(self):
        for chats in (False, True):
            for streams in (False, True):
                with self.subTest(chats=chats, streams=streams):
                    self.asked.clear()
                    agent = self.agent(chats, instructions=CALLS, tools=self.tools())
                    result = (await self.stream(ASK, agent))[0] if streams else await self.run_agent(ASK, agent)
                    self.assertEqual(self.asked, ["Oslo"])
                    self.assertRegex(result.final_output, "rain.* 12 degrees")
                    self.assertEqual([type(item).__name__ for item in result.new_items],
                                     ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"])

    async def test_it_goes_on_from_a_stored_response(self):
        first = await self.run_agent(f"Hello. {WHERE}", self.agent(instructions=KEY))
        second = await self.run_agent(WHERE, self.agent(instructions=KEY), previous_response_id=first.last_response_id)
        self.assertIn("blue drawer", second.final_output)
        [before], [after] = ([r.usage for r in result.raw_responses] for result in (first, second))
        self.assertGreaterEqual(after.input_tokens_details.cached_tokens, before.total_tokens - BLOCK)
        # The package keeps the conversation itself.
        third = await self.run_agent([*first.to_input_list(), {"role": "user", "content": WHERE}], self.agent(instructions=KEY))
        self.assertEqual(third.final_output, second.final_output)

    async def test_an_answer_with_a_schema(self):
        class Place(pydantic.BaseModel):
            city: City

        said = await self.run_agent("Anna lives in Oslo. Where does Anna live?", self.agent(output_type=Place))
        self.assertIsInstance(said.final_output, Place)


class Busy(WithServer, unittest.IsolatedAsyncioTestCase):
    flags = ("--parallel", "1", "--max-queued", "4", "--max-queue-ms", "3600000", "--temperature", "0")
    LONG = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True}

    def client(self, retries):
        return openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=retries)

    async def ask(self, client, chats):
        return (await agents.Runner.run(agent_of(client, chats, instructions=KEY), WHERE)).final_output

    async def test_a_full_queue_is_tried_again(self):
        asyncio.get_running_loop().slow_callback_duration = 10
        async with self.client(0) as hasty, self.client(50) as patient:
            for chats in (False, True):  # they are connected: later calls take no time
                self.assertIn("blue drawer", await self.ask(hasty, chats))
            await self.check_retries(hasty, patient)

    async def check_retries(self, hasty, patient):
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            others = [pool.submit(self.server.request, "POST", "/v1/completions", self.LONG) for _ in range(5)]
            self.server.until("four wait", lambda: self.server.metric("vllm:num_requests_waiting") == 4)
            for chats in (False, True):
                with self.assertRaises(openai.RateLimitError):
                    await self.ask(hasty, chats)
            for chats in (False, True):
                self.assertIn("blue drawer", await self.ask(patient, chats))
            self.assertTrue(all(other.result()[0] == 200 for other in others))


if __name__ == "__main__":
    unittest.main()
