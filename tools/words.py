#!/usr/bin/env python3
"""Checks that comments, messages and docs avoid phrases that readers stumble over, and that no line of
the docs is longer than 120 columns.

    tools/words.py              checks the tree
    tools/words.py --self-test  checks that the check fails where it must
"""
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".h", ".cc", ".py", ".sh", ".md", ".cmake")
MAX_DOC_COLUMNS = 120

IS = r"(?:is|are|was|were|be|been|being)"
# A phrase, and what to write instead.
PHRASES = [
    (rf"{IS} (?:not |never |also |only |already )?told", "say who reports what to whom"),
    (rf"(?<!there ){IS} (?-i:none)\b(?! of)", "name the thing: \"unknown KV format 'x' (known: ...)\", \"there is no GGUF file\""),
    # "there is no X", "there is none", "is no longer" and other comparisons are plain.
    (r"(?<!there )(?:is|are|was|were) no (?!(?:longer|shorter|larger|smaller|older|newer|faster|slower|better|fewer|"
     r"other|more|less)\b)", "write \"is not a\""),
    (r"but for", "write \"except\""),
    (r"what (?:is|was) there", "name the thing"),
    (r"of (?:its|their|our|your|his|her) own", "write \"its own X\" or \"a separate X\""),
    (r"for want of", "write \"because there is no\""),
]
PATTERNS = [(re.compile(rf"\b{phrase}\b" if phrase[-1].isalpha() else rf"\b{phrase}", re.I), advice)
            for phrase, advice in PHRASES]

# The same in the rooms that are clean of them (CLEAN).
PLAIN_PHRASES = [
    (r"nobody(?: else)?(?:'s)?", "say who or what: \"no request\", \"no other tenant\""),
    (r"whoever", "say who: \"the caller that\", \"a thread that\""),
    (rf"(?<!left )(?<!leave )(?<!leaves )(?<!fall )(?<!falls )(?<!fell )behind(?! (?:a|the) proxy| proxies)",
     "write \"after\" where that is meant, else say where: \"under\", \"outside\""),
]
PLAIN_PATTERNS = [(re.compile(rf"\b{phrase}\b", re.I), advice) for phrase, advice in PLAIN_PHRASES]
# How a comment may not begin. A line that goes on with a comment of the line before begins none.
BEGINS = re.compile(r'\s*(?:(?://|#)\s*|r?""")(?P<word>Of|Those|Whose|Who|That)\b')
IS_COMMENT = re.compile(r"\s*(?://|#)")
BEGIN_ADVICE = "begin with a verb (\"Returns\", \"Starts\") above a function, with a noun above a type or field"
# A comment directly above a function begins with a verb in the third person. The rule is modest: the first word, if it
# is a plain one and no label, ends in "s" and is not one of NOUNS, or is one of FIRST_WORDS. What begins with code (a
# formula, a name with a colon, a text in quotes) passes.
FIRST_WORD = re.compile(r"\s*//\s*([A-Z][A-Za-z-]*)('s)?[,.:;]?(?:\s|$)")
FIRST_WORDS = ("Return", "Absent", "False", "Null", "True", "REQUIRES")
NOUNS = set("""Allocations Always Arguments As Beams Blocks Buffers Bytes Characters Codes Conversations Decisions
    Connections Defaults Digits Errors Facts Figures Flags Guarantees Handlers Hits Ids Integers Items Its Keys Keywords Lanes Layers Lengths Letters
    Lines Links Logits Matrices Members Methods Microseconds Milliseconds Misses News Outputs Pairs Panels Paths Pieces
    Predictions Products Prompts Properties Requests Responses Results Rows Rules Seconds Segments Sequences
    Sessions Settings Sources Spaces Spans Statements Status Success Tables Tensors Texts Things This Titles Tokens Tools Types
    Users Values Weights Windows Words""".split())
VERB_ADVICE = "begin with a verb (\"Returns\", \"Starts\") above a function"
NOT_FUNCTION = re.compile(r"(?:using|struct|class|enum|typedef|namespace|union|#|public|private|protected|return|if|for|"
                          r"inline constexpr|static constexpr|alignas|static_assert|[A-Z_]+\(|\})")
ANGLES = re.compile(r"<[^<>()]*(?:\([^()<>]*\))?[^<>()]*>")
ANNOTATION = re.compile(r"\s*\bKV_[A-Z_]+\([^()]*\)")
TYPE_OPENS = re.compile(r"\s*(?:template\s*<.*>\s*)?(?:class|struct|union)\b")
DECLARED = re.compile(r"(?:[\w:&*\[\]~]+\s+)*[\w:&*\[\]~]+$")

# What PLAIN_PHRASES and BEGINS hold for: folders, and files. Widen it when a room is clean.
CLEAN = ("dev", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/", "tools/", "tests/", "bench/", "fuzz/", "src/",
         "include/")

# Where a phrase may stand: (file, phrase in lower case, reason).
EXCEPTIONS = [
    ("tools/words.py", "", "lists the phrases"),
    ("bench/format_bench.py", "nobody", "a text to read"),
    ("bench/format_bench.py", "behind", "a text to read"),
    ("bench/peers/thinking_turns.py", "nobody", "a text to read"),
    ("tools/demo_model/data.py", "nobody", "a text to read"),
    ("tools/stress.py", "behind", "a text to read"),
    ("src/import/ctranslate2_importer.cc", "behind", "a field of SourceFrame"),
    ("src/import/ctranslate2_importer_test.cc", "behind", "a field of SourceFrame"),
    ("src/text/languages.cc", "behind", "a field of SourceFrame"),
    ("src/text/translation_test.cc", "behind", "a field of SourceFrame"),
]

# A line break inside a comment, a string of several pieces or a paragraph.
BREAK = re.compile(r'"\s*\n\s*f?"|[ \t]*\n[ \t]*(?://|#|\*|>|-)?[ \t]*')
LINK = re.compile(r"\]\([^)]*\)|https?://\S+")


def is_clean(name):
    """Whether the file is in a room that CLEAN names."""
    return any(fnmatch(name, one) or (one.endswith("/") and name.startswith(one)) for one in CLEAN)


def beginnings(name, text):
    """Yields "file:line: message" for each comment that begins with a word that only its code explains."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        found = BEGINS.match(line)
        goes_on = number > 1 and IS_COMMENT.match(line) and IS_COMMENT.match(lines[number - 2])
        if found and not goes_on:
            yield f"{name}:{number}: \"{found['word']} ...\": {BEGIN_ADVICE}"


def is_function(declaration):
    """Whether a declaration, without its comment, is a function's, not a field's or a type's."""
    if NOT_FUNCTION.match(declaration):
        return False
    declaration = re.sub(r"^template\s*<.*?>\s*(?:requires .*?>\s+)?", "", declaration)
    declaration = ANNOTATION.sub("", declaration)
    shorter = ANGLES.sub("", declaration)
    while shorter != declaration:
        declaration, shorter = shorter, ANGLES.sub("", shorter)
    head, parenthesis, _ = declaration.partition("(")
    is_constant = re.search(r"\bk[A-Z]\w*\s*$", head)
    return bool(parenthesis) and "=" not in head and not is_constant and bool(DECLARED.match(head.strip()))


def is_in_body(lines, number):
    """Whether line `number` stands in a function: the line that opens what is around it is not a type's."""
    indent = len(lines[number - 1]) - len(lines[number - 1].lstrip())
    if indent < 2:
        return False
    for line in reversed(lines[:number - 1]):
        label = re.match(r" *(?:public|private|protected):|#|\s*$", line)
        if not label and len(line) - len(line.lstrip()) < indent:
            return not TYPE_OPENS.match(line)
    return False


def first_words(name, text):
    """Yields "file:line: message" for each comment above a function that does not begin with a verb."""
    lines = text.splitlines()
    for number in range(1, len(lines)):
        found = FIRST_WORD.match(lines[number - 1])
        if not found or found[1] in FIRST_WORDS or re.match(r"k[A-Z]", found[1]):
            continue
        if found[1].endswith("s") and not found[2] and found[1] not in NOUNS:
            continue
        if number > 1 and IS_COMMENT.match(lines[number - 2]):
            continue  # it goes on
        end = number
        while end < len(lines) and IS_COMMENT.match(lines[end]):
            end += 1
        declaration = []
        for line in lines[end:end + 8]:
            declaration.append(line.strip())
            if re.search(r"[;{}]", line) or not line.strip():
                break
        if is_function(" ".join(declaration).strip()) and not is_in_body(lines, number):
            yield f"{name}:{number}: \"{found[1]} ...\": {VERB_ADVICE}"


def phrases(name, text):
    """Yields "file:line: message" for each phrase, also where it goes over a line's end."""
    # Each character of `joined` comes from the line of the same index in `lines`.
    pieces, lines, at, number = [], [], 0, 1
    for found in BREAK.finditer(text):
        kept = text[at:found.start()] + ("" if found[0][0] == '"' else " ")
        pieces.append(kept)
        lines += [number] * len(kept)
        at, number = found.end(), number + found[0].count("\n")
    pieces.append(text[at:])
    lines += [number] * len(pieces[-1])
    joined = "".join(pieces)
    for pattern, advice in PATTERNS + (PLAIN_PATTERNS if is_clean(name) else []):
        for found in pattern.finditer(joined):
            phrase = found[0].strip().lower()
            if not any(name == file and (part == phrase or not part) for file, part, _ in EXCEPTIONS):
                yield f"{name}:{lines[found.start()]}: \"{phrase}\": {advice}"


def long_lines(name, text):
    """Yields "file:line: message" for each long line of a doc; code, tables and links may be long."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or line.startswith(("|", "    ")):
            continue
        columns = len(LINK.sub("", line))
        if columns > MAX_DOC_COLUMNS:
            yield f"{name}:{number}: {columns} columns (at most {MAX_DOC_COLUMNS})"


def check_file(name, text):
    yield from phrases(name, text)
    if is_clean(name) and name.endswith((".h", ".cc", ".py")):
        yield from beginnings(name, text)
    if name.endswith((".h", ".cc")):
        yield from first_words(name, text)
    if name.endswith(".md"):
        yield from long_lines(name, text)


def check():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True,
                           check=True).stdout.split("\n")
    files = [n for n in names if n.endswith(SUFFIXES) or n.endswith("CMakeLists.txt") or n == "dev"]
    files = [n for n in files if (ROOT / n).exists()]
    found = [line for n in files for line in check_file(n, (ROOT / n).read_text())]
    for line in found:
        print(line)
    print(f"words: {len(files)} files, {len(found)} phrases and lines to reword")
    return 1 if found else 0


def self_test():
    """Good and bad text: exactly the bad ones are named, each by its line."""
    wide = "word " * 30
    files = {
        "good.h": "// There is no file. It is no longer here, and no older. Told apart.\n",
        "told.h": "int a;\n// A damaged image is told,\n// and is\n// told again.\n",
        "none.cc": 'Fail("kv_format: \'{}\' "\n     "is none");\n',
        "no.py": "# The body is no JSON.\nx = y is None and y is not z\n# It is no number.\n",
        "but.cc": "// All of it but for\n// the last.\n",
        "own.sh": "# A folder of its own.\n",
        "bench/good.h": "// Returns the block\n// Whose owner is left behind, behind a proxy.\nint a;  // of a block\n",
        "bench/begins.h": "// Of a block.\nint a;\n  // Whose it is.\nint b;\n\n// Who asks.\n",
        "bench/begins.py": "def of():\n    \"\"\"Those that wait.\"\"\"\n",
        "verbs.h": "// The block\n// of it.\nBlock* Find(int a,\n            int b);\n\n// The block.\nBlock block_;\n"
                   "// Returns it.\nint Of();\n// Tokens of it.\nint Tokens() const;\n// REQUIRES: a.\nvoid A();\n"
                   "// The sink.\nstd::function<void(int)> sink = {};\n// A type.\nstruct Type {\n"
                   "  // Whether so.\n  bool Is() const { return true; }\n  // False: it is not.\n  bool Has();\n"
                   " private:\n  // Room for it.\n  bool has_ KV_GUARDED_BY(mutex_) = true;\n  // A block.\n  int Own();\n};\n",
        "verbs.cc": "// The block.\nBlock Find(int a,\n           int b) {\n  // The first one.\n  Take(a);\n}\n\n"
                    "// Bytes of it.\nint Of() {}\n// y = 2 x.\nvoid Double();\n// kNotFound: it is not there.\nvoid Open();\n"
                    "// Python's int.\nint Int();\n// Counts it.\nvoid Count();\n// REQUIRES: a.\nvoid A();\n"
                    "// The head.\nconstexpr std::string_view kHead(\"a\", 1);\n",
        "other/room.h": "// Of a block, behind another one that nobody has.\n",
        "docs/plain.md": "Nobody else's. It stands\nbehind whoever asks.\n",
        "long.md": f"# Title\n\n{wide}\n| {wide} |\n    {wide}\n```\n{wide}\n```\n[link](http://x/{'y' * 120})\n",
    }
    found = [line for name, text in files.items() for line in check_file(name, text)]
    want = ["told.h:2: ", "told.h:3: ", "none.cc:2: ", "no.py:1: ", "no.py:3: ", "but.cc:1: ", "own.sh:1: ",
            "bench/begins.h:1: ", "bench/begins.h:3: ", "bench/begins.h:6: ", "bench/begins.py:2: ",
            "verbs.h:1: ", "verbs.h:10: ", "verbs.h:18: ", "verbs.h:25: ", "verbs.cc:1: ", "verbs.cc:8: ", "verbs.cc:14: ",
            "docs/plain.md:1: ", "docs/plain.md:2: ", "docs/plain.md:2: ", "long.md:3: "]
    ok = len(found) == len(want) and all(f.startswith(w) for f, w in zip(found, want))
    print("words self-test:", "passed" if ok else f"FAILED, found {found}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else check())
