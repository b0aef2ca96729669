#!/usr/bin/env python3
"""Every flag that a command's help lists does something there, and no command takes another one.

    cli_help_test.py [KVASIR_BINARY] [unittest arguments]
"""
import pathlib
import re
import tempfile

import cli_support
from cli_support import SMALL, CliTest, kvasir

# What a flag must not be given. Who reads it says so by its name; who does not read it cannot.
WRONG = {flag: "?" for flag in (
    "--model --kv-format --kv-skip-layers --weights --threads --image-cap --log-level --kv-memory --ctx-size "
    "--parallel --cache --eviction --keep-share --retention --exact-tokens --spans --seam --span-head --block-tokens --request-memory --max-tokens --temperature --seed --top-k --top-p "
    "--min-p --repetition-penalty --presence-penalty --frequency-penalty --positions --chunk --port --repeats -p -n -d "
    "--generation-config --schedule --admission --kv-headroom --target-itl-ms --speculate --draft-max --draft-kv-memory --draft-accept --draft-hf-repo --draft-shape --step-tokens --inject --tokens "
    "--formats --layers --max-kl --max-queued --max-queue-ms --timeout-ms --max-timeout-ms --sse-ping-s "
    "--disk-cap --disk-reserve --disk-ttl --remote --fleet-secret --remote-ca --remote-mode --remote-memory --remote-ttl --remote-daily --remote-compression --kv-events --kv-events-replay --kv-events-topic --kv-events-format --kv-events-tenant --template-date --reasoning --reasoning-budget --reasoning-format --pooling --hf-repo --chat-template --chat-template-kwargs --drain-delay-s --drain-timeout-s --trace-sample --cors-origin --allowed-host --host --shape "
    "--at-once --ids --source --target --split --source-ids --target-id --sessions --responses --session-ttl --session-memory --head-memory --grammar-memory "
    "--lora --lora-scaled --lora-memory --max-lora-rank --max-loras "
    "--beams --hypotheses --length-penalty --early-stopping --min-tokens --no-repeat-ngram-size").split()}
WRONG |= {flag: "/no/such/folder/x" for flag in ("--text --recall --chat-template-file --config --api-key-file --out "
                                                 "--keys --tls-cert --tls-key --svg --slot-save-path --transcript --draft-model --lora-dir --secret-file --to --passphrase-file").split()}
WRONG |= {"--stop": "", "--disk": "", "--admin-key": "", "--otlp-traces-endpoint": "", "--api-key": "a b",
          "--alias": "", "--tags": "", "--url": "ftp://x/y", "--prompt": "", "--tenant": "", "--resume": "?",
          "--drop-lines": "(", "--move-lines": "(", "--state-dir": ""}

# What a command must be given beside the flag, so that it comes to look at it.
NEEDED = {"run": ["--ids", "1"], "logits": ["--ids", "1"], "eval": ["--text", __file__], "sessions": ["list"],
          "translate": ["--source-ids", "1", "--target-id", "1"], "backup": ["--to", "no.backup"], "restore": ["no.backup"]}

# Flags that take any value, or none, and the arguments with which they change what is printed.
SHORT = {"list": [], "show": [], "run": ["--prompt", "My name is Mira. What is my name?", *SMALL], "chat": SMALL, "info": [],
         "plan": SMALL, "inspect": [], "models": [], "key": ["new"],
         "logits": ["--ids", ",".join(map(str, range(1, 41))), *SMALL],
         "translate": ["--model", f"{cli_support.ROOT}/tests/data/m2m100-tiny", "--source-ids", "5,2", "--target-id", "9", *SMALL],
         "bench": ["-p", "8", "-n", "1", "--repeats", "1"]}
SEEN = {"--json": [], "--chat": ["--max-tokens", "9"], "--ignore-eos": ["--chat", "--max-tokens", "60"],
        "--warm": ["--out", "{folder}/x.npy"], "--pin-threads": ["--threads", "100"], "--cache-dir": [],
        "--system": [], "--speed-only": [], "--compare": [], "--admin": []}
VALUES = {"--cache-dir": "{folder}", "--system": "You are a pirate."}

# These take seconds, or serve until they are stopped: the other tests of the command see what the flags do.
ELSEWHERE = {"plan": ["--cache-dir"],  # changes nothing there; the server's command line does as it is
             "serve": ["--lora-init-without-apply", "--pin-threads", "--cache-dir", "--no-page", "--no-slots", "--prepare", "--verbose"],
             "selftest": ["--json", "--pin-threads", "--cache-dir"],
             "fsck": ["--json", "--cache-dir", "--remove-unreadable"], "eval": ["--json", "--pin-threads", "--cache-dir", "--stream"],
             "sessions": ["--json", "--cache-dir", "--all", "--unreadable"],
             "backup": ["--cache-dir", "--without-secret"], "restore": ["--cache-dir", "--without-secret"],  # backup_test.py
             "ps": ["--json"], "rm": ["--json"]}  # cli_words_test.py, hub_test.py
for command in "serve chat run translate logits plan".split():
    ELSEWHERE.setdefault(command, []).append("--allow-overcommit")  # machine_limits_test


# Flags of bench and run; elsewhere llama-server's, whose words are taken too (cli_llama_flags_test.py).
LLAMA = {"-n", "-p", "--ignore-eos", "--verbose", "--tags", "--slot-save-path", "--reasoning-format", "--pooling"}


def flags_of(command):
    """The flags that --help and --help-expert list, except these two."""
    pages = [kvasir(command, "--help").stdout]
    if "--help-expert" in pages[0]:
        pages.append(kvasir(command, "--help-expert").stdout)
    return [flag for page in pages for flag in re.findall(r"(?m)^  (--?[a-z0-9-]+)", page.split("Flags:")[1])
            if flag not in ("--help", "--help-expert")]


class HelpListsWhatIsRead(CliTest):
    @classmethod
    def setUpClass(cls):
        commands = re.findall(r"(?m)^  ([a-z]+) +\w", kvasir("--help").stdout.split("Commands:")[1])
        cls.flags = {command: flags_of(command) for command in commands}

    def test_there_is_something_to_check(self):
        self.assertEqual(len(self.flags), 24)
        self.assertGreater(sum(map(len, self.flags.values())), 150)

    def test_serve_lists_eight_flags_on_the_page_for_experts(self):
        usual, experts = (kvasir("serve", flag).stdout for flag in ("--help", "--help-expert"))
        names = re.findall(r"(?m)^  (--[a-z-]+)", experts.split("Flags:")[1])
        self.assertEqual(set(names), set("--block-tokens --step-tokens --pin-threads --keep-share --kv-headroom --sse-ping-s "
                                         "--drain-delay-s --trace-sample --help".split()))
        for name in set(names) - {"--help"}:
            self.assertNotRegex(usual, rf"(?m)^  {name}\b")
            self.assertIn(name, usual)  # where they are listed is said
        groups = re.findall(r"(?m)^ (\w.*)$", usual.split("Flags:")[1])
        self.assertEqual((groups[:3], groups[-1]), (["Every day", "Model", "Listening"], "Help"))
        self.assertIn("unknown argument '--help-expert'", kvasir("key", "--help-expert").stderr)

    def test_a_line_says_which_words_a_command_takes(self):
        words = {"run": " [MODEL] [TEXT]", "chat": " [MODEL]", "show": " [MODEL]", "rm": " MODEL...", "pull": " MODEL",
                 "backup": " [DIR]", "restore": " FILE", "translate": " [FILE]...", "models": " [rm MODEL]",
                 "key": " new | fleet FILE | secret FILE", "completions": " bash | zsh | fish",
                 "sessions": " list | show ID | rm ID | export ID | import FILE"}
        for command in self.flags:
            usage = re.findall(r"(?m)^Usage: (.*)$", kvasir(command, "--help").stdout)
            self.assertEqual(usage, [f"kvasir {command} [FLAGS]{words.get(command, '')}"])

    def test_six_flags_of_every_day_come_first(self):
        for command, first in {"serve": "--model --host --port --ctx-size --kv-memory --api-key",
                               "chat": "--model --system --resume --disk --max-tokens --temperature",
                               "run": "--prompt --model --chat --max-tokens --temperature --json"}.items():
            usual = kvasir(command, "--help").stdout.split("Flags:")[1]
            title, flags = re.match(r"\s+(\w.*)\n((?:  .*\n)+)\n", usual).groups()
            self.assertEqual((title, re.findall(r"(?m)^  (--[a-z-]+)", flags)), ("Every day", first.split()))
        for command in ("translate", "logits", "eval", "bench", "plan"):
            usual = kvasir(command, "--help").stdout.split("Flags:")[1]
            flags = re.match(r"\s+Every day\n((?:  .*\n)+)\n", usual)[1]
            self.assertEqual(len(re.findall(r"(?m)^  (--?[a-z-]+)", flags)), 6, command)

    def test_a_wrong_value_of_each_flag_is_refused_by_its_name(self):
        for command, flags in self.flags.items():
            for flag in set(flags) & set(WRONG):
                with self.subTest(command=command, flag=flag):
                    needed = NEEDED.get(command, [])
                    self.wrong(command, *([] if flag in needed else needed), flag, WRONG[flag], says=flag)

    def test_each_flag_of_any_value_changes_what_is_said(self):
        for command, flags in self.flags.items():
            for flag in set(flags) - set(WRONG):
                if flag in ELSEWHERE.get(command, []):
                    continue
                with self.subTest(command=command, flag=flag), tempfile.TemporaryDirectory() as folder:
                    arguments = [one.format(folder=folder) for one in (
                        command, *SHORT[command], *SEEN[flag], flag, *([VALUES[flag]] if flag in VALUES else []))]
                    at = arguments.index(flag)
                    without = self.said(arguments[:at], folder)
                    self.assertNotEqual(without, self.said(arguments, folder))

    def said(self, arguments, folder):
        """What a command prints, without times and speeds, and how many files are in the folder."""
        result = kvasir(*arguments, stdin="Hello\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        said = re.sub(r"\d+\.\d+|\d+( ms|%|  )| +", "", result.stdout + result.stderr)
        return said, len(list(pathlib.Path(folder).rglob("*")))

    def test_a_flag_of_other_commands_is_refused_by_its_name(self):
        """Three of each command: src/cli/commands_test.cc tries all of them."""
        every = set().union(*self.flags.values())
        for i, (command, flags) in enumerate(self.flags.items()):
            others = sorted(every - set(flags) - LLAMA)
            for flag in others[i * len(others) // 3 // len(self.flags)::len(others) // 3][:3]:
                with self.subTest(command=command, flag=flag):
                    self.wrong(command, *NEEDED.get(command, []), flag, "1",
                               says=[f"'{flag}'", f"kvasir {command} --help"])


if __name__ == "__main__":
    cli_support.main()
