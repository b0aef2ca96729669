#!/usr/bin/env python3
"""Answers under random schemas, sampled at temperature 1 through a server, are what PyPI `jsonschema` takes.

    server_random_schemas_test.py [--schemas 300] [--seed 1]

The schemas: those of tests/data/schemas.json, those of schema_test.py, and schemas whose keywords hypothesis-jsonschema
draws, all that JSON Schema has among them. A schema is refused with 400 and the path of a keyword, or each answer that
ends is valid; of tests/data/schemas.json none is refused. Two models answer: the bundled one, and one with random
weights where shared/ has it.
"""
import argparse
import collections
import concurrent.futures
import http.client
import json
import os
import random
import re
import sys
import time
import warnings
from pathlib import Path

try:
    import jsonschema
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from hypothesis.internal.conjecture.utils import many
    from hypothesis_jsonschema import from_schema
except ImportError as error:
    print(f"skipped: needs {error.name} (./dev setup)")
    sys.exit(77)

from schema_test import CORPUS, FORMATS, Schemas, checker
from server_harness import WAIT_S, Server

SHARED = Path(os.environ.get("KVASIR_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
RANDOM_MODEL = SHARED / "goldens/llama-gqa"
FIELD = "response_format.json_schema.schema"
TOKENS = 160
WAYS = 8  # requests at once


def more(elements):
    """hypothesis-jsonschema 0.23 calls this; newer versions of hypothesis have an iterator instead."""
    if not hasattr(elements, "left"):
        elements.left = iter(elements.__enter__())
    return next(elements.left, more) is not more


if not hasattr(many, "more"):
    many.more = more

# A subschema is an integer in what hypothesis-jsonschema draws, and is put there afterwards.
SUB = {"type": "integer"}
NAMES = {"enum": ["a", "b", "id", "käse", 'q"', "x y"]}
COUNT = {"type": "integer", "minimum": 0, "maximum": 4}
LIMIT = {"type": "integer", "minimum": -1000, "maximum": 1000}
SUBS = {"type": "array", "items": SUB, "minItems": 1, "maxItems": 3}
MAP = {"type": "object", "propertyNames": NAMES, "additionalProperties": SUB, "maxProperties": 3}
VALUE = {"type": ["null", "boolean", "integer", "string", "array", "object"], "maxItems": 2, "maxProperties": 1,
         "maxLength": 5}


def of(types, needed, /, **properties):
    return {"type": "object", "additionalProperties": False, "required": needed,
            "properties": {"type": {"enum": types}, **properties}}


STRING = {"minLength": COUNT, "maxLength": {"type": "integer", "minimum": 4, "maximum": 9}}
NUMBER = {key: LIMIT for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")}
OBJECT = {"properties": MAP, "required": {"type": "array", "items": NAMES, "uniqueItems": True, "maxItems": 3},
          "additionalProperties": {"anyOf": [{"type": "boolean"}, SUB]}}
ARRAY = {"items": SUB, "prefixItems": SUBS, "minItems": COUNT, "maxItems": {"type": "integer", "minimum": 2, "maximum": 5}}
ANNOTATIONS = {"title": {"type": "string"}, "description": {"type": "string"}, "default": VALUE,
               "examples": {"type": "array", "items": VALUE, "maxItems": 2}, "$comment": {"type": "string"},
               "deprecated": {"type": "boolean"}, "readOnly": {"type": "boolean"}, "x-own": VALUE}
ODD = {"not": SUB, "if": SUB, "then": SUB, "else": SUB, "contains": SUB, "minContains": COUNT, "propertyNames": SUB,
       "patternProperties": MAP, "multipleOf": {"type": "integer", "minimum": 1, "maximum": 7},
       "minProperties": COUNT, "maxProperties": COUNT, "uniqueItems": {"type": "boolean"}, "dependentRequired":
       {"type": "object", "propertyNames": NAMES, "additionalProperties": {"type": "array", "items": NAMES}},
       "dependentSchemas": MAP, "unevaluatedProperties": SUB, "unevaluatedItems": SUB, "nullable": {"type": "boolean"}}
TYPES = ["string", "integer", "number", "object", "array", "boolean", "null"]
FRAMES = [of(["string"], ["type"], **STRING), of(["string"], ["type", "pattern"], pattern={
              "enum": ["^[a-z]+$", "ab", r"^\d{3}-\w+$", "^(a|b)*c?$", r"x\s*y", "^[^0-9]{2,4}$", "z$", "", "(?=a)", "("]}),
          of(["string"], ["type", "format"], format={"enum": [*FORMATS, "email", "ipv4", "uri"]}),
          of(["integer", "number"], ["type"], **NUMBER), of(["object"], ["type", "properties"], **OBJECT),
          of(["object"], ["type", "properties", "required"], **OBJECT), of(["array"], ["type"], **ARRAY),
          of(["array"], ["type", "items"], items=SUB), of(TYPES, ["anyOf"], anyOf=SUBS), of(TYPES, ["oneOf"], oneOf=SUBS),
          of(TYPES, ["allOf"], allOf=SUBS), of(TYPES, ["enum"], enum={"type": "array", "items": VALUE, "maxItems": 4}),
          of(TYPES, ["const"], const=VALUE), of(TYPES, ["type"], **ANNOTATIONS),
          of(TYPES, [], **STRING, **NUMBER, **OBJECT, **ARRAY, **ANNOTATIONS), of(TYPES, [], **ODD, **OBJECT, **ARRAY)]
ONE = ["items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
       "unevaluatedProperties", "unevaluatedItems"]
LISTS, MAPS = ["prefixItems", "anyOf", "oneOf", "allOf"], ["properties", "patternProperties", "dependentSchemas"]


def schemas_of_all_keywords():
    frames = [from_schema(frame) for frame in FRAMES]
    leaves = frames[:4] + frames[11:14]

    @st.composite
    def fill(draw, depth, root=False):
        if not root and draw(st.integers(0, 11)) == 0:
            return draw(st.sampled_from([True, {}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]))
        schema = draw(st.sampled_from(frames if depth > 0 else leaves).flatmap(lambda frame: frame))
        for key, value in schema.items():
            if key in ONE and not isinstance(value, bool):
                schema[key] = draw(fill(depth - 1))
            elif key in LISTS:
                schema[key] = [draw(fill(depth - 1)) for _ in value]
            elif key in MAPS:
                schema[key] = {name: draw(fill(depth - 1)) for name in value}
        if root and '"#/$defs' in json.dumps(schema):
            schema["$defs"] = {"a": draw(fill(0)), "b": draw(fill(1))}
        return schema

    return fill(3, root=True)


def drawn(count):
    found = {}

    # Few examples of a run are alike, but some are.
    @settings(max_examples=count * 3, database=None, derandomize=True, phases=[Phase.generate], deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(schemas_of_all_keywords())
    def draw(schema):
        if len(found) < count:
            found.setdefault(json.dumps(schema), schema)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    return list(found.values())


class Run:
    def __init__(self, server, seed):
        self.server, self.seed, self.formats = server, seed, checker()
        self.counts = collections.Counter()

    def post(self, body):
        """(status, answer)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10 * WAIT_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def check(self, number, schema, must_compile):
        """What is wrong, or None."""
        strict = number % 4 == 3 and not must_compile
        status, answer = self.post({
            "messages": [{"role": "user", "content": "Where does Anna live?"}], "temperature": 1, "max_tokens": TOKENS,
            "seed": self.seed * 1_000_003 + number,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema, "strict": strict}}})
        if status != 200:
            error = answer["error"]
            self.counts["refused"] += 1
            says_where = str(error["param"]).startswith(FIELD) and re.search(r"'#|rule '#", error["message"])
            return None if status == 400 and says_where and not must_compile else f"{status} {error}"
        choice = answer["choices"][0]
        if choice["finish_reason"] != "stop":
            self.counts["cut"] += 1
            return None if choice["finish_reason"] == "length" else f"finish_reason {choice['finish_reason']}"
        self.counts["checked"] += 1
        text = choice["message"]["content"]
        try:
            value = json.loads(text)
            validator = jsonschema.Draft202012Validator(schema, format_checker=self.formats)
            errors = [error.message for error in validator.iter_errors(value)]
        except ValueError as error:
            errors = [f"not JSON: {error}"]
        return f"{errors[0]}\n  answer {text}" if errors else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    begun = time.monotonic()
    schemas = [(schema, True) for schema in json.loads(CORPUS.read_text()) for _ in range(3)]
    schemas += [(schema, False) for schema in drawn(args.schemas * 2 // 3)]
    schemas += [(Schemas(args.seed * 7_000_003 + i).make(), False) for i in range(args.schemas - args.schemas * 2 // 3)]
    schemas = [one for one in schemas if isinstance(one[0], dict)]  # OpenAI's field takes no `true`
    random.Random(args.seed).shuffle(schemas)
    print(f"{len(schemas)} schemas drawn in {time.monotonic() - begun:.0f} s", flush=True)
    models = [()] + [("--model", str(RANDOM_MODEL))] * RANDOM_MODEL.is_dir()
    failed = 0
    for i, flags in enumerate(models):
        # Two of three to the bundled model: texts of random weights seldom end.
        mine = schemas if len(models) == 1 else [one for n, one in enumerate(schemas) if (n % 3 == 2) == (i == 1)]
        with Server("--parallel", str(WAYS), *flags) as server:
            run = Run(server, args.seed)
            with concurrent.futures.ThreadPoolExecutor(WAYS) as pool:
                wrong = pool.map(lambda one: run.check(one[0], *one[1]), enumerate(mine))
                for (schema, _), what in zip(mine, wrong):
                    if what:
                        failed += 1
                        print(f"wrong: {what}\n  schema {json.dumps(schema)}", flush=True)
            assert server.get("/health") == {"status": "ok"}
            name = "random weights" if flags else "bundled"
            print(f"{name}: {len(mine)} schemas, {run.counts['refused']} refused, {run.counts['checked']} answers checked, "
                  f"{run.counts['cut']} cut, {failed} wrong so far, {time.monotonic() - begun:.0f} s", flush=True)
            if run.counts["checked"] * 8 < len(mine):
                sys.exit("too few answers ended")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
