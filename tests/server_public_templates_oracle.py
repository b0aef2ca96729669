#!/usr/bin/env python3
"""Public templates in the real server: what a history of calls says is in the prompt, or `ignored` names it.

    server_public_templates_oracle.py [--templates FOLDER]

FOLDER: templates *.jinja; by default those that tools/llama_server_tests.sh has downloaded (exit 77 without them).
Prints `templates N histories M in the prompt A named B`.
"""
import argparse
import itertools
import json
import pathlib
import shutil
import sys
import tempfile

from server_harness import ROOT, Server

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}},
                   "required": ["city"]}}}]
# jinja2 as transformers sets it up refuses these too, or they need variables that only their makers give.
REFUSED = {"Kimi-K2-Instruct": "'append' of 'list' object is unsafe", "Kimi-K2-Thinking": "'append' of 'list' object is unsafe",
           "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
           "google-gemma-2-2b-it": "Conversation roles must alternate",
           "llama-cpp-deepseek-r1": "Object of type generator is not JSON serializable"}
CONTENTS = ({}, {"content": None}, {"content": ""}, {"content": "I look."})
ARGUMENTS = ('{"city": "Bodoe"}', {"city": "Bodoe"})


def history(content, arguments):
    call = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return [{"role": "user", "content": "How is it there?"},
            {"role": "assistant", **content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": "Sleet, 3 degrees."},
            {"role": "assistant", "content": "Sleet."}, {"role": "user", "content": "And tomorrow?"}]


def check(server, body, refused):
    """(parts in the prompt, parts that `ignored` names); raises with what is neither. `refused`: what the error says."""
    status, _, answer = server.request("POST", "/apply-template", body)
    if refused:
        assert status == 400 and refused in answer["error"]["message"], answer
        assert answer["error"]["param"].startswith("messages["), answer
        return 0, 0
    assert status == 200, (status, answer)
    prompt = answer["prompt"]
    status, _, answer = server.request("POST", "/v1/chat/completions", body | {"max_tokens": 1})
    assert status == 200, (status, answer)
    ignored = answer["kvasir"]["ignored"]
    parts = {"tools": "The weather of a place." in prompt, "messages[1]": "get_weather" in prompt and "Bodoe" in prompt,
             "messages[2]": "Sleet, 3 degrees." in prompt, "messages[4]": "And tomorrow?" in prompt}
    missing = [name for name, is_in in parts.items() if not is_in]
    for name in missing:
        assert any(path == name or path.startswith(name + ".") for path in ignored), (name, ignored, prompt)
    return len(parts) - len(missing), len(missing)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path,
                        default=ROOT / "build/llama_server_tests/llama.cpp/models/templates")
    folder = parser.parse_args().templates
    files = sorted(folder.glob("*.jinja"))
    if not files:
        print(f"skipped: needs templates in {folder} (tools/llama_server_tests.sh downloads them)")
        return 77
    histories, shown, named, failed = 0, 0, 0, []
    scratch = tempfile.TemporaryDirectory()
    model = pathlib.Path(scratch.name) / "model"  # whose context holds the longest of these prompts
    shutil.copytree(ROOT / "models/kvasir-demo", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    for file in files:
        try:
            with Server("--chat-template-file", str(file), "--model", str(model)) as server:
                for content, arguments in itertools.product(CONTENTS, ARGUMENTS):
                    body = {"messages": history(content, arguments), "tools": TOOLS}
                    in_prompt, in_ignored = check(server, body, REFUSED.get(file.stem))
                    histories, shown, named = histories + 1, shown + in_prompt, named + in_ignored
        except (AssertionError, RuntimeError) as error:
            failed.append(f"{file.name}: {str(error)[:600]}")
    print("\n".join(failed))
    print(f"templates {len(files)} histories {histories} in the prompt {shown} named {named} failed {len(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
