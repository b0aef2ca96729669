#!/usr/bin/env python3
"""Embeddings over HTTP: OpenAI's client, both poolings against transformers, what the cache saves, and what is refused.

    server_embeddings_test.py [KVASIR_BINARY] [unittest arguments]
"""
import base64
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

try:
    import openai
except ImportError:
    print("skipped: needs the Python package openai")
    sys.exit(77)

from needs import needs
from server_harness import BINARY, ROOT, Server, WithServer

GOLDEN = pathlib.Path(os.environ.get("KVASIR_SHARED", ROOT.parent / "shared")) / "goldens/qwen3"
TINY = ROOT / "tests/data/tiny-qwen3"
TOLERANCE = 1e-5  # of unit vectors
TEXT = "The brass key is in the blue drawer of the old desk, under the letters. "
EXACT = ("--kv-format", "f32")


def unit(x):
    return x / numpy.linalg.norm(x)


def vectors(answer):
    return [numpy.array(one["embedding"], "<f4") for one in answer["data"]]


class Embeddings(WithServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    def ask(self, **body):
        return self.server.post("/v1/embeddings", body)

    def refused(self, param, words, **body):
        status, _, answer = self.server.request("POST", "/v1/embeddings", body)
        self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        self.assertIn(words, answer["error"]["message"])

    def test_the_python_client_gets_vectors_of_unit_length(self):
        texts = [TEXT, "a", TEXT + "b"]
        answer = self.client.embeddings.create(model="default", input=texts)  # as base64
        self.assertEqual([one.index for one in answer.data], [0, 1, 2])
        for one in answer.data:
            self.assertAlmostEqual(float(numpy.linalg.norm(one.embedding)), 1, 6)
        same = self.client.embeddings.create(model="default", input=texts, encoding_format="float")
        for one, other in zip(answer.data, same.data):
            self.assertEqual(numpy.array(one.embedding, "<f4").tobytes(), numpy.array(other.embedding, "<f4").tobytes())
        short = self.client.embeddings.create(model="default", input=TEXT, dimensions=5).data[0].embedding
        self.assertEqual(len(short), 5)
        whole = numpy.array(answer.data[0].embedding)
        self.assertLess(abs(unit(whole[:5]) - numpy.array(short)).max(), 1e-6)
        self.assertEqual(answer.usage.prompt_tokens, answer.usage.total_tokens)
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model="default", input="")

    def test_ids_are_what_texts_are(self):
        ids = self.server.post("/tokenize", {"prompt": TEXT})["tokens"]
        of_text, of_ids, listed = (vectors(self.ask(input=x))[0] for x in (TEXT, ids, [ids]))
        self.assertEqual(of_text.tobytes(), of_ids.tobytes())
        self.assertEqual(of_text.tobytes(), listed.tobytes())

    def test_the_cache_saves_what_was_read_and_changes_no_bit(self):
        fresh = self.ask(input=TEXT, cache_salt="fresh")
        tokens = fresh["usage"]["prompt_tokens"]
        self.assertEqual(fresh["kvasir"]["computed"], tokens)
        again = self.ask(input=TEXT, cache_salt="fresh")
        self.assertEqual(again["kvasir"]["computed"], 0)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], tokens)
        apart = self.ask(input=TEXT, cache_prompt=False)
        self.assertEqual(apart["kvasir"]["computed"], tokens)
        for other in again, apart:
            self.assertEqual(vectors(fresh)[0].tobytes(), vectors(other)[0].tobytes())

    def test_what_texts_share_is_read_once(self):
        random = numpy.random.default_rng(1)
        shared = random.integers(0, 500, 64).tolist()
        texts = [shared + random.integers(0, 500, 64).tolist() for _ in range(256)]
        answer = self.ask(input=texts, dimensions=1, cache_salt="shared")
        self.assertEqual(answer["usage"]["prompt_tokens"], 256 * 128)
        self.assertLessEqual(answer["kvasir"]["computed"], 64 + 256 * 65)

    def test_two_thousand_texts_at_once(self):
        texts = [f"{TEXT}{i}" for i in range(2048)]
        answer = self.ask(input=texts, encoding_format="base64", dimensions=3)
        self.assertEqual([one["index"] for one in answer["data"]], list(range(2048)))
        for i in (0, 63, 64, 2047):  # alone: the same bits
            (alone,) = vectors(self.ask(input=texts[i], dimensions=3, cache_prompt=False))
            self.assertEqual(base64.b64decode(answer["data"][i]["embedding"]), alone.tobytes())
        self.assertLess(answer["kvasir"]["computed"], answer["kvasir"]["prompt_tokens"] / 2)

    def test_bad_input_is_named(self):
        self.refused("dimensions", "0 is not an integer between 1 and", input="a", dimensions=0)
        self.refused("dimensions", "is not an integer between 1 and", input="a", dimensions=10 ** 6)
        self.refused("input", "is empty", input="")
        self.refused("input[1]", "is empty", input=["a", ""])
        self.refused("input[0]", "is empty", input=[[], [1]])
        self.refused("input", "is an empty list", input=[])
        self.refused("input", "is missing")
        self.refused("input", "at most 2048", input=["a"] * 2049)
        self.refused("input", "not a text", input={"a": 1})
        self.refused("input[1]", "must be", input=["a", {}])
        self.refused("input[0]", "", input=[[10 ** 6]])
        self.refused("encoding_format", "float", input="a", encoding_format="int8")
        self.refused("input[1]", "context size", input=["a", "word " * 20000])
        self.assertEqual(self.server.request("POST", "/v1/embeddings", {"input": "a", "model": "no"})[0], 404)


class SmallQueue(WithServer):
    flags = ("--parallel", "1", "--max-queued", "2")

    def test_more_texts_than_the_queue_has_places(self):
        answer = self.server.post("/v1/embeddings", {"input": [f"{TEXT}{i}" for i in range(100)], "dimensions": 2})
        self.assertEqual(len(answer["data"]), 100)


def hidden_states(logits, model):
    """Final hidden states of rows of logits: the output head has more rows than columns."""
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]["lm_head.weight"]
    data = (model / index).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])["lm_head.weight"]
    begin, end = header["data_offsets"]
    bits = numpy.frombuffer(data[8 + size + begin:8 + size + end], "<u2").astype("<u4") << 16
    head = bits.view("<f4").reshape(header["shape"]).astype("f8")
    return numpy.linalg.lstsq(head, logits.astype("f8").T, rcond=None)[0].T


@needs(GOLDEN)
class AsTransformers(unittest.TestCase):
    """The logits of the goldens are those of transformers in float64."""

    def check(self, pooling, wanted, model=GOLDEN):
        prompts = json.loads((GOLDEN / "golden.json").read_text())["prompts"]
        with Server("--model", str(model), "--pooling", pooling, *EXACT) as server:
            for i, want in wanted.items():
                for chunk in (False, True):  # the second time from the cache, where it keeps something
                    (got,) = vectors(server.post("/v1/embeddings", {"input": prompts[i]["ids"]}))
                    self.assertLess(abs(got - unit(want)).max(), TOLERANCE, (pooling, i, chunk))

    def test_last(self):
        arrays = numpy.load(GOLDEN / "golden.npz")
        wanted = {i: hidden_states(arrays[f"p{i}.last"][None], GOLDEN)[0] for i in range(4)}
        for model in GOLDEN, GOLDEN / "model-bf16.gguf":
            self.check("last", wanted, model)

    def test_mean(self):
        rows = hidden_states(numpy.load(GOLDEN / "golden.npz")["p2.all"], GOLDEN)
        self.check("mean", {2: rows.mean(0)})


class Files(unittest.TestCase):
    """What a model's folder says of embeddings."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def copy(self, name, rename=lambda name: name, **config):
        """The tiny model with other names of tensors, and with other keys in its config.json."""
        target = self.folder / name
        shutil.copytree(TINY, target, ignore=shutil.ignore_patterns("*.gguf", "*.npz", "golden*"))
        path = target / "model.safetensors"
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = {rename(key): value for key, value in json.loads(data[8:8 + size]).items()}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
        config = json.loads((target / "config.json").read_text()) | config
        (target / "config.json").write_text(json.dumps(config))
        return target

    def pool(self, model, **modes):
        (model / "1_Pooling").mkdir(exist_ok=True)
        (model / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{k}": v for k, v in modes.items()}))

    def embedding(self, model, *flags):
        with Server("--model", str(model), *EXACT, *flags) as server:
            return server.request("POST", "/v1/embeddings", {"input": [[5, 9, 11, 3, 8]]})[2]

    def test_the_folder_says_which_pooling(self):
        model = self.copy("model")
        last, mean = (vectors(self.embedding(model, "--pooling", name))[0] for name in ("last", "mean"))
        self.assertNotEqual(last.tobytes(), mean.tobytes())
        self.assertEqual(vectors(self.embedding(model))[0].tobytes(), last.tobytes())
        self.pool(model, cls_token=False, mean_tokens=True, lasttoken=False)
        self.assertEqual(vectors(self.embedding(model))[0].tobytes(), mean.tobytes())
        self.pool(model, cls_token=True)
        error = self.embedding(model)["error"]
        self.assertIn("1_Pooling/config.json: the pooling 'cls_token' is not supported", error["message"])
        self.assertEqual(vectors(self.embedding(model, "--pooling", "last"))[0].tobytes(), last.tobytes())

    def test_tensors_without_model_in_their_names(self):
        bare = self.copy("bare", lambda name: name.removeprefix("model."))
        want, got = (vectors(self.embedding(model))[0] for model in (TINY, bare))
        self.assertEqual(want.tobytes(), got.tobytes())

    def test_a_text_gets_the_end_token_of_its_tokenizer(self):
        """A post-processor adds it, as that of Qwen3-Embedding does, or add_eos_token."""
        end = {"id": "<|end|>", "ids": [2], "tokens": ["<|end|>"]}
        part = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}
        template = {"type": "TemplateProcessing", "special_tokens": {"<|end|>": end}, **{
            name: [*({"Sequence": {"id": letter, "type_id": 0}} for letter in letters), part]
            for name, letters in (("single", "A"), ("pair", "AB"))}}
        for file, change, more in (("tokenizer.json", {"post_processor": template}, [2]),
                                   ("tokenizer_config.json", {"add_eos_token": True}, [2]), ("tokenizer_config.json", {}, [])):
            model = shutil.copytree(ROOT / "models/kvasir-demo", self.folder / f"{len(os.listdir(self.folder))}")
            (model / file).write_text(json.dumps(json.loads((model / file).read_text()) | change))
            with self.subTest(change), Server("--model", str(model)) as server:
                def ask(given, **fields):
                    return server.post("/v1/embeddings", {"input": given, "cache_prompt": False, **fields})

                ids = server.post("/tokenize", {"prompt": TEXT, "add_special_tokens": False})["tokens"]
                text, alone = ask(TEXT), ask(TEXT, add_special_tokens=False)
                self.assertEqual([text["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]],
                                 [len(ids + more), len(ids)])
                self.assertEqual(vectors(text)[0].tobytes(), vectors(ask(ids + more))[0].tobytes())
                self.assertEqual(vectors(alone)[0].tobytes(), vectors(ask(ids))[0].tobytes())

    def test_bidirectional_models_are_refused_by_name(self):
        for config, words in (({"architectures": ["BertModel"]}, "'BertModel' is bidirectional"),
                              ({"is_causal": False}, "is_causal is false"),
                              ({"use_bidirectional_attention": True}, "use_bidirectional_attention")):
            model = self.copy(words.split("'")[-1].split()[0] + str(len(words)), **config)
            done = subprocess.run([BINARY, "serve", "--port", "0", "--model", str(model)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2 if done.returncode == 2 else 1)
            self.assertIn(words, done.stderr)

    def test_an_encoder_decoder_model_embeds_no_texts(self):
        with Server("--model", str(ROOT / "tests/data/m2m100-tiny")) as server:
            status, _, answer = server.request("POST", "/v1/embeddings", {"input": "a"})
            self.assertEqual(status, 400)
            self.assertIn("translates", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
