#!/usr/bin/env python3
"""`kvasir chat`: its commands, and what they leave in the cache."""

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import termios
import time
import unittest

import cli_support
from cli_support import SMALL, CliTest, kvasir

SYSTEM = "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."
CODE = "What is the code of the green safe?"
ANNA = "Where does Anna live?"
RECEIPT = r"\[prompt (\d+) tokens: (\d+) from cache, (\d+) computed;"


class ChatTest(CliTest):
    def chat(self, *lines, flags=(), system=SYSTEM, status=0):
        """What each line printed."""
        result = kvasir("chat", *SMALL, "--system", system, *flags, stdin="\n".join(lines))
        self.assertEqual(result.returncode, status, result.stderr)
        self.errors = result.stderr
        parts = result.stdout.split("> ")[1:]
        for line, part in zip(lines, parts):
            self.assertTrue(part.startswith(line + "\n"), part)
        return [part[len(line) + 1:] for line, part in zip(lines, parts)]

    def answer(self, part):
        return part.split("\n")[0]

    def computed(self, part):
        return int(re.search(RECEIPT, part)[3])

    def test_an_edited_message_is_answered_anew_from_the_place_that_differs(self):
        parts = self.chat(ANNA, CODE, "/edit 1 Where does Anna live now?", "/list")
        fresh = self.chat("Where does Anna live now?", flags=["--cache", "none"])
        self.assertEqual(self.answer(parts[2]), self.answer(fresh[0]))
        self.assertLess(self.computed(parts[2]), 10)
        self.assertEqual(parts[3].count(" tokens "), 3, parts[3])
        self.assertNotIn("safe?", parts[3])
        self.assertTrue(parts[2].endswith("(3 messages after it taken out)\n"), parts[2])

    def test_an_edited_answer_stays_and_nothing_is_generated(self):
        parts = self.chat(ANNA, "/edit 2 The home of Anna is in Rome.", "/list")
        self.assertEqual(parts[1], "(message 2 has the new text)\n")
        self.assertIn("The home of Anna is in Rome.", parts[2])

    def test_undo_takes_back_a_question_and_its_answer(self):
        parts = self.chat(ANNA, CODE, "/undo", "/list", "/undo", "/undo", status=2)
        self.assertEqual(parts[2], f"(taken back: {CODE})\n")
        self.assertEqual(parts[3].count(" tokens "), 3, parts[3])
        self.assertIn("the conversation has no message of yours to take back", self.errors)

    def test_forks_go_on_apart(self):
        parts = self.chat(ANNA, "/fork other", CODE, "/switch main", "/list", "/fork", "/switch other", "/list")
        self.assertEqual(parts[4].count(" tokens "), 3)
        self.assertIn("(conversation main; others: other)", parts[4])
        self.assertIn("(conversation 3, a copy of main; /switch main goes back)", parts[5])
        self.assertEqual(parts[7].count(" tokens "), 5)
        # The copy computed its own question alone.
        self.assertLess(self.computed(parts[2]), 16)

    def test_answers_of_forks_and_after_undo_are_those_without_a_cache(self):
        off = ["--cache", "none"]
        parts = self.chat(ANNA, "/fork b", CODE, "/undo", "Who are you?", "/switch main", CODE)
        self.assertEqual(self.answer(parts[2]), self.answer(parts[6]))
        for last, part in ((CODE, parts[6]), ("Who are you?", parts[4])):
            fresh = self.chat(ANNA, last, flags=off)
            self.assertEqual(self.answer(part), self.answer(fresh[1]))
            self.assertEqual(int(re.search(RECEIPT, fresh[1])[2]), 0)

    def test_what_is_forgotten_cannot_be_recalled_and_is_not_in_the_cache(self):
        parts = self.chat(ANNA, "/forget 0", CODE)
        self.assertRegex(parts[1], r"message 0 is forgotten: erased \d+ blocks? with [1-9]\d* tokens\)")
        self.assertNotIn("4711", parts[2])
        prompt, cached, _ = map(int, re.search(RECEIPT, parts[2]).groups())
        self.assertLess(cached, 16, prompt)

    def test_the_last_question_is_forgotten_without_a_number(self):
        for command in ("/forget", "/undo --forget"):
            parts = self.chat(ANNA, "The code of the red safe is 9876543. Who are you?", command, "/list", command, command, status=2)
            self.assertRegex(parts[2], r"^\(your last message and its answer are forgotten: erased [1-9]\d* blocks? with [1-9]\d* tokens")
            self.assertNotIn("9876543", parts[2] + parts[3])
            self.assertEqual(parts[3].count(" tokens "), 3)
            self.assertIn("your last message and its answer are forgotten", parts[4])
            self.assertIn("the conversation has no message of yours to take back", self.errors)
        # The question before it is still in the cache, the forgotten one is not.
        parts = self.chat(ANNA, CODE, "/forget", CODE, "/undo", CODE)
        self.assertGreater(self.computed(parts[3]), 10)
        self.assertEqual(self.computed(parts[3]), self.computed(parts[1]))
        self.assertLess(self.computed(parts[5]), 3)

    def test_another_conversation_keeps_what_it_says(self):
        parts = self.chat(ANNA, "/fork other", "/forget 0", "/switch main", CODE)
        self.assertRegex(parts[2], r"; kept (1 block|[1-9]\d* blocks) that another conversation contains")
        self.assertIn("4711", parts[4])
        self.assertLess(self.computed(parts[4]), 32)

    def test_the_system_message_is_replaced_and_later_messages_stay(self):
        parts = self.chat(ANNA, "/system You are Kvasir. Boris works in the harbour.", "/system", "/list",
                          "/reset", "/list")
        self.assertEqual(parts[2], "(system: You are Kvasir. Boris works in the harbour.)\n")
        self.assertEqual(parts[3].count(" tokens "), 3)
        self.assertEqual(parts[5].count(" tokens "), 1)
        self.assertIn("Boris", parts[5])

    def test_the_receipt_is_that_of_the_last_answer(self):
        parts = self.chat(ANNA, CODE, "/receipt")
        self.assertIn(f'"computed": {self.computed(parts[1])}', parts[2])
        self.chat("/receipt", status=2)
        self.assertIn("nothing was answered yet", self.errors)

    def test_what_cannot_be_done_is_said_and_changes_nothing(self):
        wrong = {"/edti 1 x": "unknown command /edti (did you mean /edit?); /help lists them",
                 "/frobnicate": "unknown command /frobnicate; /help lists them",
                 "/edit": "/edit needs the number of a message and its new text; /list shows the numbers",
                 "/edit 1": "/edit 1 needs the new text of the message",
                 "/edit 9 x": "9 is outside the 3 messages of the session",
                 "/forget 3": "3 is outside the 3 messages of the session",
                 "/forget -1": "/forget takes the number of a message, or nothing for your last one and its answer; /list shows the "
                               "numbers",
                 "/fork main": "a conversation has the name main already",
                 "/switch other": "unknown conversation other; known: main",
                 "/switch": "/switch needs the name of a conversation: main",
                 "/undo it": '/undo takes nothing after it, or --forget, and "it" was there',
                 "/list it": '/list takes nothing after it, and "it" was there'}
        parts = self.chat(ANNA, *wrong, "/list", status=2)
        for said in wrong.values():
            self.assertIn(f"kvasir chat: {said}\n", self.errors)
        self.assertEqual(parts[-1].count(" tokens "), 3)

    def test_other_programs_words_leave_and_help(self):
        for leave in ("/quit", "/bye"):
            result = kvasir("chat", *SMALL, stdin=f"/?\n{leave}\n{ANNA}")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("/exit, Ctrl-D     leaves", result.stdout)
            self.assertNotIn(ANNA, result.stdout)

    def test_help_names_every_command(self):
        text = self.chat("/help")[0]
        for command in ("/edit", "/undo", "/fork", "/switch", "/forget", "/system", "/list", "/receipt", "/reset", "/exit"):
            self.assertIn(command, text)


class PastTheContextTest(CliTest):
    """A small context, and a temperature at which answers are long: seed 1 ends after 291 tokens."""
    FLAGS = ["--ctx-size", 128, "--max-tokens", 300, "--temperature", 3, "--seed", 1]
    STORY = "Tell me a story."

    def chat(self, retention, *lines, status=0):
        result = kvasir("chat", *SMALL, *self.FLAGS, "--retention", retention, stdin="\n".join(lines))
        self.assertEqual(result.returncode, status, result.stderr)
        self.errors = result.stderr
        return [part[len(line) + 1:] for line, part in zip(lines, result.stdout.split("> ")[1:])]

    def test_an_answer_passes_the_context_and_its_line_and_receipt_say_what_it_dropped(self):
        for policy, numbers, first in (("sinks+window", "budget=32", 32), ("window", "budget=48", 48),
                                       ("heavy", "budget=64", 128)):
            parts = self.chat(f"{policy}:{numbers}", self.STORY, "/receipt", "/list", "/undo", self.STORY, "/receipt")
            receipt = json.loads(parts[1])
            dropped = receipt["retention"]["dropped"]
            self.assertGreater(dropped, 128)
            self.assertEqual((receipt["retention"]["policy"], receipt["retention"]["inexact_from"]), (policy, first))
            self.assertEqual(receipt["inexact"], {"from": first, "why": "retention"})
            self.assertIn(f" ms to first token; {policy} dropped {dropped} tokens, inexact from {first}]", parts[0])
            # Longer than the context, and shown with its tokens.
            tokens = [int(count) for count in re.findall(r" (\d+) tokens ", parts[2])]
            self.assertEqual((len(tokens), sum(tokens) > 2 * 128), (2, True), parts[2])
            # The same question again, from the cache: the same answer by the same decisions.
            self.assertEqual(parts[4].rsplit("[prompt", 1)[0], parts[0].rsplit("[prompt", 1)[0])
            again = json.loads(parts[5])
            self.assertEqual(again["retention"], receipt["retention"])
            self.assertGreater(sum(again["reused"].values()), 0)

    def test_without_a_policy_it_ends_with_the_context(self):
        parts = self.chat("full", self.STORY, "/receipt", "/list")
        receipt = json.loads(parts[1])
        self.assertEqual((receipt["retention"], receipt["inexact"]), (None, None))
        self.assertNotIn("dropped", parts[0])
        self.assertLessEqual(sum(int(count) for count in re.findall(r" (\d+) tokens ", parts[2])), 128)

    def test_what_is_longer_than_the_context_is_taken_back_and_the_chat_goes_on(self):
        parts = self.chat("sinks+window:budget=32", self.STORY, ANNA, "/undo", ANNA, "/receipt", "/list", status=2)
        self.assertRegex(self.errors, r"^kvasir chat: the conversation has 3\d\d tokens, which with 1 to generate do not fit the "
                                      r"context of 128; /undo takes back your last message, /edit N TEXT makes ")
        self.assertEqual(parts[2], f"(taken back: {self.STORY})\n")
        self.assertLess(json.loads(parts[4])["prompt_tokens"], 32)
        self.assertIn(ANNA, parts[5])

    def test_what_is_longer_than_the_context_is_forgotten(self):
        parts = self.chat("sinks+window:budget=32", self.STORY, "/forget 0", "/list")
        self.assertRegex(parts[1], r"message 0 is forgotten: erased [1-9]\d* blocks? with [1-9]\d* tokens\)")
        self.assertNotIn(self.STORY, parts[2])


class TerminalTest(unittest.TestCase):
    def setUp(self):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([cli_support.BINARY, "chat", *SMALL, "--system", SYSTEM], stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                                        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
        os.close(slave)
        self.text = ""
        self.read_until("")

    def tearDown(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def read_until(self, what, begin=0):
        """Reads past `what` to the next prompt: keys that come before it meet the terminal's own line editing."""
        end = time.time() + 60
        while not re.search(re.escape(what) + ".*> ", self.text[begin:], re.DOTALL):
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.time()))
            self.assertTrue(ready, self.text)
            self.text += os.read(self.master, 4096).decode(errors="replace")
        return self.text[begin:]

    def send(self, keys, until):
        begin = len(self.text)
        os.write(self.master, keys.encode())
        return self.read_until(until, begin)

    def test_lines_are_edited_and_come_again(self):
        # Left, left, a letter; then the line once more by the up key.
        self.send("Where does Anna liv?\x1b[De\r", "ms to first token]")
        self.assertIn("Oslo", self.text)
        self.send("\x1b[A\r", "ms to first token]")
        text = self.send("/list\r", "(conversation main)")
        self.assertEqual(text.count("Where does Anna live?"), 2, text)

    def test_the_tab_key_completes_commands(self):
        self.assertIn(SYSTEM, self.send("/sy\t\r", "(system: "))

    def test_characters_of_several_bytes_are_one_key(self):
        self.send("/system Zoë mag kéks\x7f\x7f\x7f\x7fäse.\r", "(the next answer")
        self.assertIn("Zoë mag äse.", self.send("/system\r", "äse.)"))

    def test_control_c_shows_a_new_prompt_and_control_d_leaves(self):
        text = self.send("half a line\x03", "(/exit or Ctrl-D leaves)")
        self.send("/list\r", "(conversation main)")
        os.write(self.master, b"\x04")
        self.assertEqual(self.process.wait(timeout=30), 0, text)


if __name__ == "__main__":
    unittest.main()
