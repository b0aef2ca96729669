"""What a page of docs prints: its commands and what they say, for tests that run them."""

import contextlib
import os
import pty
import re

from server_harness import ROOT


def section(page, title):
    """The text below a heading of docs/`page`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.search(rf"\n## {title}\n(.*?)(?=\n## |\Z)", text, re.S)[1]


def commands(text):
    """Each command of the indented blocks, lines that a backslash continues as one."""
    blocks = re.findall(r"(?m)((?:^    .+\n)+)", re.sub(r"(?ms)^```.*?^```$", "", text))
    return [line for block in blocks for line in re.sub(r"(?m)^    ", "", block).replace("\\\n", " ").splitlines()]


def shown(text):
    """Each block between ```, which shows an output or a file."""
    return re.findall(r"(?m)^```\n(.*?)^```$", text, re.S)


def without_figures(line):
    """The line without times and sizes, which differ from run to run."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", re.sub(r"[\d.]+ (bytes|[KM]iB) of text", "SIZE of text", line))


def typed_in(words, answers, environment):
    """The exit status of a command in a terminal, and the last line that it shows. `answers`: what prompts end with, and the
    lines that are typed after them."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(words[0], words, environment)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal ends with the command
        for prompt, line in answers:
            while not seen.endswith(prompt.encode()):
                seen += os.read(terminal, 1)
            os.write(terminal, line.encode() + b"\n")
            seen += os.read(terminal, 1)
        while part := os.read(terminal, 1000):
            seen += part
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    last = seen.decode().replace("\r\n", "\n").rstrip("\n").rsplit("\n", 1)[-1]
    return status, last.rsplit("\r\x1b[K", 1)[-1] + "\n"  # without a bar that was wiped
