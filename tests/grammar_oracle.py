#!/usr/bin/env python3
"""Compares masks of tokens with those of PyPI `xgrammar` and `llguidance`, whichever is installed.

    KVASIR_TOOLS=build/release/tests grammar_oracle.py [--walks 20] [--seed 1]

The same grammars (GBNF for xgrammar, regular expressions for both), the same small vocabulary of
bytes, words, halves of characters and JSON's marks; random walks along legal tokens, with every mask
on the way. Neither is needed by anything else (xgrammar brings torch), so neither is in
tests/requirements.txt: `pip install xgrammar llguidance`.
"""
import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

GBNF = [
    'root ::= "yes" | "no" | "not yet"',
    'root ::= [a-z]+ (" " [a-z]+)* "."',
    'root ::= "(" root* ")"',
    'root ::= item ("," item)*\nitem ::= [0-9]{1,3} | "\\"" [^"\\\\]* "\\""',
    'root ::= [\\u00e4\\u20ac\\U0001F600]+ "x"?',
    'root ::= value\nvalue ::= object | array | string | number | "true" | "false" | "null"\n'
    'object ::= "{" (member ("," member)*)? "}"\nmember ::= string ":" value\n'
    'array ::= "[" (value ("," value)*)? "]"\nstring ::= "\\"" [^"\\\\]* "\\""\n'
    'number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?',
    'root ::= a b\na ::= "x"* "y"?\nb ::= ("x" | "yz"){2,4}',
]
REGEX = [r"[a-c]+(x|yy)?\d{2,3}", r"(ab|a)*c?", r"\d{4}-(0[1-9]|1[0-2])", r"(true|false|null)", r"[^a]{1,3}b",
         r"(ä|€)+z"]
WORDS = ["true", "false", "null", "yes", "not", " yet", "ab", "abc", "aa", "xy", "yz", "xx", "12", "123", "2024", "-0",
         '{"', '":', '",', '"}', "]}", "[[", "((", "))", "()", "ä", "€", "😀", ", ", "a b", ".", ' "a"', '",“']


def vocabulary():
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [word.encode() for word in WORDS]
    tokens += ["€".encode()[:2], "😀".encode()[:3], "😀".encode()[1:], "€".encode()[2:] + b"x"]
    return list(dict.fromkeys(tokens))


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokens):
        import torch
        import xgrammar
        self.xgrammar, self.torch, self.end = xgrammar, torch, len(tokens)
        info = xgrammar.TokenizerInfo(tokens + [b"<end>"], vocab_type=xgrammar.VocabType.RAW,
                                      vocab_size=len(tokens) + 1, stop_token_ids=[self.end])
        self.compiler = xgrammar.GrammarCompiler(info)

    def start(self, kind, text):
        compiled = (self.compiler.compile_grammar(text) if kind == "gbnf" else self.compiler.compile_regex(text))
        return self.xgrammar.GrammarMatcher(compiled)

    def legal(self, matcher):
        mask = self.xgrammar.allocate_token_bitmask(1, self.end + 1)
        if not matcher.fill_next_token_bitmask(mask):
            return list(range(self.end + 1))
        bits = [int(word) & 0xFFFFFFFF for word in mask[0]]
        return [i for i in range(self.end + 1) if bits[i // 32] >> (i % 32) & 1]

    def take(self, matcher, token):
        assert matcher.accept_token(token)

    def takes(self, matcher, token):
        taken = matcher.accept_token(token)
        if taken:
            matcher.rollback(1)
        return taken


class LlGuidance:
    name = "llguidance"

    def __init__(self, tokens):
        import llguidance
        self.library, self.end = llguidance, len(tokens)
        all_tokens = tokens + [b"<end>"]

        class Tokenizer:
            eos_token_id = len(tokens)
            bos_token_id = None
            special_token_ids = [len(tokens)]

            def __init__(self):
                self.tokens = all_tokens

            def __call__(self, text):
                return list(text.encode() if isinstance(text, str) else text)

        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))

    def start(self, kind, text):
        if kind == "gbnf":
            return None
        grammar = self.library.LLMatcher.grammar_from_regex(text.replace(r"\d", "[0-9]"))  # its \d is Unicode's
        return self.library.LLMatcher(self.tokenizer, grammar)

    def legal(self, matcher):
        mask = matcher.compute_bitmask()
        return [i for i in range(self.end + 1) if mask[i // 8] >> (i % 8) & 1]

    def take(self, matcher, token):
        assert matcher.consume_token(token)

    def takes(self, matcher, token):
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokens = vocabulary()
    oracles = []
    for oracle in (XGrammar, LlGuidance):
        try:
            oracles.append(oracle(tokens))
        except ImportError:
            print(f"{oracle.name} is not installed")
    if not oracles:
        print("skipped: needs xgrammar or llguidance (pip install)")
        sys.exit(77)
    tool = subprocess.Popen([Path(os.environ["KVASIR_TOOLS"]) / "grammar_tool"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)

    def ask(**request):
        tool.stdin.write(json.dumps(request) + "\n")
        tool.stdin.flush()
        return json.loads(tool.stdout.readline())

    draw = random.Random(args.seed)
    hexes, end, masks, differ, explained = [token.hex() for token in tokens], len(tokens), 0, 0, 0
    for kind, text in [("gbnf", text) for text in GBNF] + [("regex", text) for text in REGEX]:
        for _ in range(args.walks):
            path = []
            while len(path) < 12:
                legal = ask(**{kind: text}, tokens=hexes, path=path)["legal"][-1]
                going_on = [token for token in legal if token != end]
                if not going_on:
                    break
                longer = [token for token in going_on if len(tokens[token]) > 1]
                path.append(draw.choice(longer if longer and draw.random() < 0.6 else going_on))
            ours = ask(**{kind: text}, tokens=hexes, path=path)["legal"]
            for oracle in oracles:
                matcher = oracle.start(kind, text)
                if matcher is None:
                    continue
                for step, legal in enumerate(ours):
                    theirs = oracle.legal(matcher)
                    masks += 1
                    # xgrammar's mask lacks some tokens that end several rules and that it takes all the same.
                    extra = set(legal) - set(theirs)
                    if extra and all(oracle.takes(matcher, token) for token in extra):
                        explained += 1
                        theirs = sorted(set(theirs) | extra)
                    if legal != theirs:
                        differ += 1
                        only = [tokens[i] if i < end else "end" for i in set(legal) - set(theirs)]
                        missing = [tokens[i] if i < end else "end" for i in set(theirs) - set(legal)]
                        print(f"{oracle.name}: {text!r} after {[tokens[i] for i in path[:step]]}: "
                              f"only ours {only[:8]}, only theirs {missing[:8]}")
                        break
                    if step < len(path):
                        oracle.take(matcher, path[step])
    tool.stdin.close()
    print(f"{masks} masks, of {explained} xgrammar lacks tokens that it takes; {differ} walks differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
