#!/usr/bin/env python3
"""Makes the transcripts that `kvasir bench --transcript` replays: prompts and answers as people have them.

usage: transcripts.py KVASIR MODEL FOLDER [--xquad FILE] [--prose FILE] [--count 30]

Writes FOLDER/NAME.jsonl, a line {"prompt": ids, "answer": ids} each, by the tokenizer of MODEL:
  rewrite  a file of this repository and what a commit is about; the file as the commit leaves it
  diff     the same prompts; the commit's diff of the file
  quotes   a paragraph of XQuAD with a question; the sentence in which the answer stands
  prose    a page of a book; how it goes on
A file has 2 to 10 KB and changes in at most a tenth of its lines. Sets whose source is missing are left out, by
name. Which commits, paragraphs and pages: drawn with a fixed seed, so they change only with the repository.
"""
import argparse
import difflib
import json
import pathlib
import random
import subprocess

from serve_bench import Client, Server

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared/data"
SEED = 20261127
BYTES = (2000, 10000)


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, errors="replace").stdout


def changed_files():
    """(path, subject, text before, text after) of commits that change a file a little."""
    commits = git("log", "--no-merges", "--format=%H %s").splitlines()
    random.Random(SEED).shuffle(commits)
    for line in commits:
        commit, _, subject = line.partition(" ")
        for path in git("diff-tree", "--no-commit-id", "--name-only", "--diff-filter=M", "-r", commit).split():
            if not path.endswith((".cc", ".h", ".py")):
                continue
            before, after = git("show", f"{commit}~1:{path}"), git("show", f"{commit}:{path}")
            lines = sum(line[0] in "+-" for line in difflib.ndiff(before.split("\n"), after.split("\n")) if line)
            if BYTES[0] <= len(after) <= BYTES[1] and 2 <= lines <= after.count("\n") / 10:
                yield path, subject, before, after
                break


def rewrites(count):
    for _, (path, subject, before, after) in zip(range(count), changed_files()):
        prompt = f"{path}:\n```\n{before}```\nTask: {subject}\n"
        diff = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/" + path, "b/" + path))
        yield f"{prompt}The whole file afterwards:\n```\n", after, f"{prompt}The change as a diff:\n```\n", diff


def quotes(path, count):
    paragraphs = [p for article in json.loads(path.read_text())["data"] for p in article["paragraphs"]]
    draw = random.Random(SEED)
    for paragraph in draw.sample(paragraphs, min(count, len(paragraphs))):
        text, question = paragraph["context"], draw.choice(paragraph["qas"])
        at = question["answers"][0]["answer_start"]
        begin = text.rfind(". ", 0, at) + 2 if ". " in text[:at] else 0
        end = text.find(". ", at) + 1 or len(text)
        yield f'{text}\n\n{question["question"]} Answer with a quote.\n', f'"{text[begin:end]}"'


def pages(path, count):
    text = path.read_text(errors="replace")
    draw = random.Random(SEED)
    for _ in range(count):
        at = draw.randrange(len(text) - 4000)
        yield text[at:at + 2500], text[at + 2500:at + 4000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--xquad", type=pathlib.Path, default=DATA / "xquad/xquad.en.json")
    parser.add_argument("--prose", type=pathlib.Path, default=DATA / "prose/botchan.txt")
    parser.add_argument("--count", type=int, default=30)
    o = parser.parse_args()
    o.folder.mkdir(parents=True, exist_ok=True)
    changes = list(rewrites(o.count))
    sets = {"rewrite": [c[:2] for c in changes], "diff": [c[2:] for c in changes]}
    for name, path, make in (("quotes", o.xquad, quotes), ("prose", o.prose, pages)):
        if path.exists():
            sets[name] = list(make(path, o.count))
        else:
            print(f"{name}: left out, {path} is missing")
    with Server(o.kvasir, "--model", o.model) as server:
        connection = Client(server).connection

        def ids(text, special):
            body = json.dumps({"content": text, "add_special": special, "parse_special": False})
            connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())["tokens"]

        for name, pairs in sets.items():
            made = [{"prompt": ids(prompt, True), "answer": ids(answer, False)} for prompt, answer in pairs]
            (o.folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
            count = [sum(len(line[part]) for line in made) for part in ("prompt", "answer")]
            print(f"{name}: {len(made)} transcripts, {count[0]} tokens of prompts, {count[1]} of answers")


if __name__ == "__main__":
    main()
