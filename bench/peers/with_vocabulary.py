#!/usr/bin/env python3
"""The same GGUF file with the vocabulary of a tokenizer.json (byte-level BPE, such as Qwen 2.5's).

usage: with_vocabulary.py IN.gguf TOKENIZER.json OUT.gguf [--pre qwen2]

Needs the package gguf. make_model.py's vocabulary has hardly a token that more than one byte begins;
what grammars cost depends on the vocabulary. Ids without a token become unused ones.
"""
import argparse
import json
import sys

sys.path.pop(0)  # gguf.py beside this file is another one
import gguf  # noqa: E402

TOKENS, TYPES, MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--pre", default="qwen2")
    o = parser.parse_args()
    reader = gguf.GGUFReader(o.model)
    old = {field.name: field for field in reader.fields.values()}
    size = len(old[TOKENS].data)
    with open(o.tokenizer, encoding="utf-8") as f:
        tokenizer = json.load(f)
    texts = [f"[unused{i}]" for i in range(size)]
    types = [int(gguf.TokenType.UNUSED)] * size
    for text, i in tokenizer["model"]["vocab"].items():
        texts[i], types[i] = text, int(gguf.TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = int(gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]

    writer = gguf.GGUFWriter(o.out, old["general.architecture"].contents())
    for name, field in old.items():
        if name.startswith(("GGUF.", "tokenizer.")) or name == "general.architecture":
            continue
        writer.add_key_value(name, field.contents(), field.types[0],
                             field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(o.pre)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    ends = [i for i, text in enumerate(texts) if text in ("<|endoftext|>", "<|im_end|>")]
    writer.add_bos_token_id(ends[0])
    writer.add_eos_token_id(ends[-1])
    writer.add_add_bos_token(False)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
