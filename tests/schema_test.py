#!/usr/bin/env python3
"""Checks that texts drawn from the grammars of JSON schemas are what PyPI `jsonschema` takes.

    KVASIR_TOOLS=build/release/tests schema_test.py [--schemas 400] [--samples 8] [--seed 1]

The schemas: those of tests/data/schemas.json (tools and response formats as clients send them) and
random ones. A schema is refused by the path of a keyword, or each text drawn from it is valid; of
the corpus none is refused.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

try:
    import jsonschema
except ImportError:
    print("skipped: needs jsonschema (./dev setup)")
    sys.exit(77)

CORPUS = Path(__file__).resolve().parent / "data/schemas.json"
WORDS = ["a", "b", "name", "käse", "x y", 'q"', "id"]
# `jsonschema` checks formats with packages that are not here; these say what the formats are.
FORMATS = {"date": r"\d{4}-\d\d-\d\d", "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
           "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
           "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"}


class Schemas:
    """Random schemas, of keywords that are honoured and some that are not."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def make(self, depth=3):
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "types", "any"]
        if depth > 0:
            kinds += ["object", "object", "array", "anyOf", "oneOf", "allOf", "tuple", "map", "odd"]
        kind = self.random.choice(kinds)
        return getattr(self, "make_" + kind)(depth)

    def maybe(self, chance=0.5):
        return self.random.random() < chance

    def make_any(self, depth):
        return self.random.choice([{}, True, {"title": "anything"}])

    def make_boolean(self, depth):
        return {"type": "boolean"}

    def make_null(self, depth):
        return {"type": "null"}

    def make_types(self, depth):
        return {"type": self.random.sample(["string", "integer", "null", "boolean", "array"], 2)}

    def make_string(self, depth):
        choice = self.random.randrange(4)
        if choice == 0:
            low = self.random.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + self.random.randrange(5)}
        if choice == 1:
            return {"type": "string", "pattern": self.random.choice(
                ["^[a-z]+$", "ab", r"^\d{3}-\w+$", r"^(a|b)*c?$", r"x\s*y", r'^"\\$', "^[^0-9]{2,4}$", "z$"])}
        if choice == 2:
            return {"type": "string", "format": self.random.choice(list(FORMATS))}
        return {"type": "string"}

    def bounds(self, span):
        bounds = {}
        low = self.random.randint(-span, span)
        if self.maybe():
            bounds[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.maybe():
            bounds[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.randint(0, span)
        return bounds

    def make_integer(self, depth):
        return {"type": "integer"} | self.bounds(10 ** self.random.randint(1, 12))

    def make_number(self, depth):
        return {"type": "number"} | self.bounds(10 ** self.random.randint(0, 6))

    def make_enum(self, depth):
        values = [1, 2.5, -3, None, True, "x", 'q"\n', "ä", [1, 2], {"a": [None]}, 1e20]
        if self.maybe():
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, self.random.randint(1, 4))}

    def make_object(self, depth):
        names = self.random.sample(WORDS, self.random.randint(0, 4))
        schema = {"type": "object", "properties": {name: self.make(depth - 1) for name in names},
                  "required": [name for name in names if self.maybe()]}
        if self.maybe():
            schema["additionalProperties"] = self.random.choice([False, True, self.make(depth - 1)])
        if self.maybe(0.2):
            schema["required"].append("extra")
        return schema

    def make_map(self, depth):
        return {"type": "object", "additionalProperties": self.make(depth - 1)}

    def make_array(self, depth):
        low = self.random.randrange(3)
        schema = {"type": "array", "items": self.make(depth - 1)}
        if self.maybe():
            schema["minItems"] = low
        if self.maybe():
            schema["maxItems"] = low + self.random.randrange(3)
        return schema

    def make_tuple(self, depth):
        schema = {"type": "array", "prefixItems": [self.make(depth - 1) for _ in range(self.random.randint(1, 3))]}
        if self.maybe():
            schema["items"] = self.random.choice([False, self.make(depth - 1)])
        if self.maybe():
            schema["minItems"] = self.random.randrange(4)
        return schema

    def make_anyOf(self, depth):
        return {"anyOf": [self.make(depth - 1) for _ in range(self.random.randint(1, 3))]}

    def make_oneOf(self, depth):
        if self.maybe():
            return {"oneOf": [self.make(depth - 1) for _ in range(2)]}
        branches = [self.make_object(depth) for _ in range(2)]
        for i, branch in enumerate(branches):
            branch["properties"]["kind"] = {"const": f"k{i}"}
            branch["required"].append("kind")
        return {"oneOf": branches}

    def make_allOf(self, depth):
        return {"allOf": [self.make_object(depth), self.make_object(depth)]}

    def make_odd(self, depth):
        schema = self.make(depth - 1)
        if not isinstance(schema, dict):
            return schema
        key, value = self.random.choice([("not", {"type": "null"}), ("multipleOf", 3), ("minProperties", 1),
                                         ("uniqueItems", True), ("contains", {}), ("propertyNames", {})])
        return schema | {key: value}


def checker():
    formats = jsonschema.FormatChecker(formats=())
    for name, pattern in FORMATS.items():
        formats.checks(name)(lambda text, pattern=pattern: not isinstance(text, str)
                             or re.fullmatch(pattern, text, re.ASCII) is not None)
    return formats


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=400)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tool = subprocess.Popen([Path(os.environ["KVASIR_TOOLS"]) / "grammar_tool"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)

    def ask(**request):
        tool.stdin.write(json.dumps(request) + "\n")
        tool.stdin.flush()
        return json.loads(tool.stdout.readline())

    corpus = json.loads(CORPUS.read_text())
    schemas = [(True, schema) for schema in corpus]
    schemas += [(False, Schemas(args.seed * 1_000_000 + i).make()) for i in range(args.schemas)]
    formats, checked, refused, failed = checker(), 0, 0, 0
    for number, (must_compile, schema) in enumerate(schemas):
        answer = ask(schema=schema, seed=args.seed + number, samples=args.samples)
        if "error" in answer:
            refused += 1
            if must_compile or not re.search(r"'#|rule '#", answer["error"]):
                print(f"refused: {answer['error']}\n  {json.dumps(schema)}")
                failed += 1
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
        for text in answer["samples"]:
            checked += 1
            try:
                errors = [error.message for error in validator.iter_errors(json.loads(text))]
            except ValueError as error:
                errors = [f"not JSON: {error}"]
            if errors:
                print(f"invalid: {text}\n  {json.dumps(schema)}\n  {errors[0]}")
                failed += 1
    tool.stdin.close()
    print(f"{len(schemas)} schemas, {refused} refused, {checked} texts, {failed} wrong")
    if checked < len(schemas) * args.samples // 3:
        sys.exit("too few texts were drawn")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
