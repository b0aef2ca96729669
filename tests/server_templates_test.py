#!/usr/bin/env python3
"""How a request chooses and ends its chat template: continue_final_message, chat_template_name, variables of
the server, built-in templates.

    server_templates_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import pathlib
import tempfile

import cli_support
from cli_support import SMALL, CliTest, get_json, kvasir, post, server

DEMO = cli_support.ROOT / "models/kvasir-demo"
QUESTION = {"role": "user", "content": "My name is Mira. What is my name?"}
BEGUN = {"role": "assistant", "content": "Your name"}
PLAIN = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if mood %}({{ mood }}){% endif %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}")


class Templates(CliTest):
    def prompt(self, url, messages, **fields):
        status, answer = post(url, "/apply-template", {"messages": messages, **fields})
        self.assertEqual(status, 200, answer)
        return answer["prompt"]

    def refused(self, url, field, says, messages, path="/v1/chat/completions", **fields):
        status, answer = post(url, path, {"messages": messages, **fields})
        self.assertEqual((status, answer["error"]["param"]), (400, field), answer)
        self.assertIn(says, answer["error"]["message"])

    def test_a_last_message_of_the_assistant_is_continued(self):
        with server(*SMALL) as (url, _):
            asked = self.prompt(url, [QUESTION])
            for fields in ({}, {"continue_final_message": True}, {"continue_final_message": "content"},
                           {"continue_final_message": True, "add_generation_prompt": False}):
                self.assertEqual(self.prompt(url, [QUESTION, BEGUN], **fields), asked + "Your name")
            new = self.prompt(url, [QUESTION, BEGUN, QUESTION])
            new = new[:new.index("Your name")] + "Your name<|end|>"
            self.assertEqual(self.prompt(url, [QUESTION, BEGUN], continue_final_message=False), new + "<|assistant|>")
            self.assertEqual(self.prompt(url, [QUESTION, BEGUN], add_generation_prompt=True), new + "<|assistant|>")
            self.assertEqual(self.prompt(url, [QUESTION, BEGUN], add_generation_prompt=False), new)
            self.assertEqual(self.prompt(url, [QUESTION], continue_final_message=True), asked[:asked.rindex("<|end|>")])

            # The answer is the rest, as the same tokens of a prompt have it.
            whole = post(url, "/v1/chat/completions", {"messages": [QUESTION], "temperature": 0})[1]["choices"][0]["message"]["content"]
            self.assertTrue(whole.startswith("Your name"), whole)
            status, rest = post(url, "/v1/chat/completions", {"messages": [QUESTION, BEGUN], "temperature": 0})
            self.assertEqual((status, rest["choices"][0]["message"]["content"]), (200, whole[len("Your name"):]))
            raw = post(url, "/v1/completions", {"prompt": asked + "Your name", "temperature": 0, "max_tokens": 64})[1]
            self.assertEqual(raw["choices"][0]["text"], whole[len("Your name"):])
            self.assertEqual(raw["usage"]["prompt_tokens"], rest["usage"]["prompt_tokens"])
            self.assertGreaterEqual(rest["kvasir"]["reused"]["pool"] + rest["kvasir"]["reused"]["partial"],
                                    rest["usage"]["prompt_tokens"] - 4)

            for field in ("always", 1, ["content"]):
                self.refused(url, "continue_final_message", "not true, false, ", [QUESTION, BEGUN], continue_final_message=field)
            self.refused(url, "continue_final_message", "cannot both be true", [QUESTION, BEGUN], continue_final_message=True,
                         add_generation_prompt=True)
            calls = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
            self.refused(url, "continue_final_message", "tool calls cannot be continued", [QUESTION, calls],
                         continue_final_message=True)
            self.assertTrue(self.prompt(url, [QUESTION, calls]).endswith("<|assistant|>"))
            self.refused(url, "messages", "no reasoning_content to continue", [QUESTION, BEGUN],
                         continue_final_message="reasoning_content")

    def test_sessions_continue_nothing(self):
        with server(*SMALL) as (url, _):
            session = post(url, "/v1/sessions", {"messages": [QUESTION, BEGUN]})[1]["id"]
            status, answer = post(url, f"/v1/sessions/{session}/generate", {"messages": [QUESTION], "max_tokens": 2})
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["usage"]["prompt_tokens"],
                             post(url, "/v1/chat/completions", {"messages": [QUESTION, BEGUN, QUESTION]})[1]["usage"]["prompt_tokens"])
            status, answer = post(url, f"/v1/sessions/{session}/generate", {"continue_final_message": True})
            self.assertEqual((status, answer["error"]["param"]), (400, "continue_final_message"), answer)

    def test_a_thought_that_is_continued_is_a_thought(self):
        source = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
                  "</think>{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
        with server(*SMALL, "--chat-template", source) as (url, _):
            for begun, field in (({"content": "", "reasoning_content": "The name"}, "reasoning_content"),
                                 ({"content": "<think>The name"}, "content")):
                answer = post(url, "/v1/chat/completions", {"messages": [QUESTION, {"role": "assistant", **begun}], "max_tokens": 4,
                                                            "continue_final_message": field})[1]["choices"][0]["message"]
                self.assertEqual(answer["content"] or "", "")
                self.assertNotEqual(answer["reasoning_content"], "")

    def test_a_message_that_the_template_changes_is_not_continued(self):
        with server(*SMALL, "--chat-template", "{% for m in messages %}{{ m.content|upper }}{% endfor %}") as (url, _):
            self.refused(url, "messages", "cannot be continued", [QUESTION, BEGUN])
            self.assertTrue(self.prompt(url, [QUESTION, BEGUN], continue_final_message=False).endswith("YOUR NAME"))

    def test_templates_are_chosen_by_name_or_by_tools(self):
        tools = [{"type": "function", "function": {"name": "look"}}]
        with tempfile.TemporaryDirectory() as path:
            model = pathlib.Path(path)
            for file in DEMO.iterdir():
                (model / file.name).symlink_to(file)
            config = json.loads((model / "tokenizer_config.json").read_text())
            (model / "tokenizer_config.json").unlink()
            config["chat_template"] = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": "tools: " + PLAIN},
                                       {"name": "rag", "template": "{{ documents[0].text }}: " + PLAIN}]
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            with server(*SMALL, "--model", str(model)) as (url, _):
                plain = "<|user|>Hi<|end|><|assistant|>"
                hi = [{"role": "user", "content": "Hi"}]
                documents = [{"text": "D"}]
                self.assertEqual(self.prompt(url, hi), plain)
                self.assertEqual(self.prompt(url, hi, tools=tools), "tools: " + plain)
                self.assertEqual(self.prompt(url, hi, tools=tools, chat_template_name="default"), plain)
                self.assertEqual(self.prompt(url, hi, chat_template_name="tool_use"), "tools: " + plain)
                self.assertEqual(self.prompt(url, hi, chat_template_name="rag", documents=documents), "D: " + plain)
                self.refused(url, "documents", "does not use documents", hi, documents=documents)
                self.refused(url, "chat_template_name", "\"other\" is unknown; the model has default, rag, tool_use", hi,
                             chat_template_name="other")
                self.refused(url, "chat_template_name", "", hi, chat_template_name=7)
                props = get_json(url + "/props")
                self.assertEqual((props["chat_template"], props["chat_template_tool_use"]), (PLAIN, "tools: " + PLAIN))
                session = post(url, "/v1/sessions", {"messages": hi, "chat_template_name": "tool_use"})[1]
                answer = post(url, f"/v1/sessions/{session['id']}/generate", {"max_tokens": 1})[1]
                self.assertEqual(answer["usage"]["prompt_tokens"],
                                 len(post(url, "/tokenize", {"content": "tools: " + plain})[1]["tokens"]))
                self.assertEqual(post(url, "/v1/sessions", {"messages": hi, "chat_template_name": "other"})[0], 400)
        with server(*SMALL) as (url, _):
            self.assertEqual(self.prompt(url, [QUESTION], chat_template_name="default"), self.prompt(url, [QUESTION]))
            self.refused(url, "chat_template_name", "the model has default", [QUESTION], chat_template_name="tool_use")
            self.assertNotIn("chat_template_tool_use", get_json(url + "/props"))

    def test_variables_of_the_server_come_behind_those_of_a_request(self):
        variables = json.dumps({"mood": "kind", "other": [1]})
        with server(*SMALL, "--chat-template", PLAIN, "--chat-template-kwargs", variables) as (url, _):
            self.assertTrue(self.prompt(url, [QUESTION]).endswith("<|end|>(kind)<|assistant|>"))
            self.assertTrue(self.prompt(url, [QUESTION], chat_template_kwargs={"mood": "sad"}).endswith("(sad)<|assistant|>"))
            self.assertTrue(self.prompt(url, [QUESTION], chat_template_kwargs={"x": 1}).endswith("(kind)<|assistant|>"))
            session = post(url, "/v1/sessions", {"messages": [QUESTION]})[1]["id"]
            self.assertEqual(post(url, f"/v1/sessions/{session}/generate", {"max_tokens": 1})[1]["usage"]["prompt_tokens"],
                             post(url, "/v1/chat/completions", {"messages": [QUESTION], "max_tokens": 1})[1]["usage"]["prompt_tokens"])

    def test_tokenize_has_the_tokens_of_the_chat(self):
        """As routers ask for them, in vLLM's form."""
        template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + PLAIN
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
        with server(*SMALL, "--chat-template", template) as (url, _):
            counts = {}
            for name, fields in (("plain", {}), ("tools", {"tools": tools}),
                                 ("variables", {"chat_template_kwargs": {"mood": "sad"}}),
                                 ("both", {"tools": tools, "chat_template_kwargs": {"mood": "sad"}}),
                                 ("open", {"tools": tools, "add_generation_prompt": False})):
                with self.subTest(name):
                    chat = {"messages": [QUESTION], **fields}
                    tokenized = post(url, "/tokenize", chat)[1]
                    text = post(url, "/detokenize", {"tokens": tokenized["tokens"]})[1]["content"]
                    self.assertEqual(text, self.prompt(url, **chat))
                    answer = post(url, "/v1/chat/completions", {**chat, "tool_choice": "none", "max_tokens": 1}
                                  if "tools" in fields else {**chat, "max_tokens": 1})[1]
                    self.assertEqual(tokenized["count"], answer["usage"]["prompt_tokens"])
                    counts[name] = tokenized["count"]
            self.assertGreater(counts["both"], max(counts["tools"], counts["variables"]))
            self.assertGreater(min(counts["tools"], counts["variables"]), counts["plain"])
            self.assertLess(counts["open"], counts["tools"])
            status, answer = post(url, "/tokenize", {"messages": [QUESTION], "tools": "weather"})
            self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
            status, answer = post(url, "/tokenize", {"messages": [QUESTION], "chat_template_kwargs": [1]})
            self.assertEqual((status, answer["error"]["param"]), (400, "chat_template_kwargs"), answer)

    def test_builtin_templates_and_texts_on_the_command_line(self):
        with server(*SMALL, "--chat-template", "gemma") as (url, _):
            self.assertIn("<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
                          self.prompt(url, [{"role": "user", "content": "Hi"}]))
        for command in (["serve"], ["chat"], ["run", "--chat", "--prompt", "Hi"]):
            for value, says in (("vicuna", "known name (chatml, llama2, llama3, mistral, gemma, phi3, command-r)"), ("", "known name"),
                                ("{% if", "line 1")):
                self.wrong(*command, "--chat-template", value, says=["--chat-template: ", says])
            for value in ("", "[]", "{", "x", '{"a": 1} 2'):
                self.wrong(*command, "--chat-template-kwargs", value, says=["--chat-template-kwargs: ", "is not a JSON object"])
            self.wrong(*command, "--chat-template", "chatml", "--chat-template-file", "x", says="only one of --chat-template and")
        self.wrong("run", "--prompt", "x", "--chat-template", "chatml", says="--chat-template: only --chat applies a template")
        run = ["run", "--chat", "--prompt", "My name is Mira. What is my name?", "--max-tokens", "6", *SMALL]
        own = self.ok(*run)
        same = ["--chat-template", "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"]
        self.assertEqual(self.ok(*run, *same), own)
        self.assertNotEqual(self.ok(*run, "--chat-template", "{{ text }}", "--chat-template-kwargs", '{"text": "Anna lives in"}'), own)
        said = kvasir("chat", *SMALL, *same, stdin="My name is Mira. What is my name?\n").stdout
        self.assertIn("Mira", said.split("?\n", 1)[1])


if __name__ == "__main__":
    cli_support.main()
