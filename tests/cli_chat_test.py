#!/usr/bin/env python3
"""`kvasir chat`: its commands, and what they leave in the cache."""

import fcntl
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
        self.assertRegex(parts[1], r"message 0 is forgotten: \d+ blocks with [1-9]\d* tokens are erased; 0 blocks stay")
        self.assertNotIn("4711", parts[2])
        prompt, cached, _ = map(int, re.search(RECEIPT, parts[2]).groups())
        self.assertLess(cached, 16, prompt)

    def test_another_conversation_keeps_what_it_says(self):
        parts = self.chat(ANNA, "/fork other", "/forget 0", "/switch main", CODE)
        self.assertRegex(parts[2], r"; [1-9]\d* blocks stay, which another conversation contains")
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
                 "/edit 9 x": "index: 9 is outside the 3 messages of the session",
                 "/forget": "/forget needs the number of a message; /list shows the numbers",
                 "/forget 3": "index: 3 is outside the 3 messages of the session",
                 "/forget -1": "/forget needs the number of a message; /list shows the numbers",
                 "/fork main": "a conversation has the name main already",
                 "/switch other": "unknown conversation other; known: main",
                 "/switch": "/switch needs the name of a conversation: main",
                 "/undo it": '/undo takes nothing after it, and "it" was there'}
        parts = self.chat(ANNA, *wrong, "/list", status=2)
        for said in wrong.values():
            self.assertIn(f"kvasir chat: {said}\n", self.errors)
        self.assertEqual(parts[-1].count(" tokens "), 3)

    def test_help_names_every_command(self):
        text = self.chat("/help")[0]
        for command in ("/edit", "/undo", "/fork", "/switch", "/forget", "/system", "/list", "/receipt", "/reset", "/exit"):
            self.assertIn(command, text)


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
