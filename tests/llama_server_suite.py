"""llama-server's own tests against Kvasir; tools/llama_server_tests.sh runs this file.

As a program it stands where the suite expects llama-server: it replaces models from a hub by
stories260K and starts Kvasir with the rest of the command line. As a pytest plugin it writes what
each test did, compares that with tests/data/llama_server_tests.txt, and fails on any difference
or where fewer than LEAST pass.
"""
import collections
import os
import pathlib
import random
import re
import struct
import sys
import types

ROOT = pathlib.Path(os.environ["KVASIR_ROOT"])
LIST = ROOT / "tests/data/llama_server_tests.txt"
LEAST = 140  # tests that must pass
MODEL = pathlib.Path(os.environ["KVASIR_SHARED"]) / "data/stories260K/tinyllamas-stories-260k-f32.gguf"
MODEL_CONTEXT = 512  # stories260K was trained for no more
# llama-server's template of models that have none.
FALLBACK_TEMPLATE = "chatml"


def infill_model():
    """The model with marks of what it fills in: the tokens of the bytes 0, 1 and 2, which no test's text has."""
    path = ROOT / "build/llama_server_tests/stories260K-infill.gguf"
    if not path.exists():
        data = MODEL.read_bytes()
        magic, version, tensors, keys = struct.unpack_from("<IIII", data)
        assert version == 1  # with lengths of 32 bits
        added = b"".join(struct.pack(f"<I{len(name)}sII", len(name), name, 4, token) for name, token in (
            (b"tokenizer.ggml.fim_pre_token_id", 3), (b"tokenizer.ggml.fim_suf_token_id", 4),
            (b"tokenizer.ggml.fim_mid_token_id", 5)))
        added += struct.pack("<I22sIB", 22, b"tests.alignment_filler", 0, 0)
        assert len(added) % 32 == 0  # the tensors stay where they must begin
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(struct.pack("<IIII", magic, version, tensors, keys + 4) + added + data[16:])
        new.rename(path)
    return path


def command_line(arguments):
    """Kvasir's arguments for llama-server's."""
    out, model, template = [], None, False
    context, parallel, unified = None, 1, False
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--hf-repo", "--hf-file"):
            name = next(rest)
            model = infill_model() if "infill" in name else model or MODEL
        elif argument == "--offline":
            pass
        elif argument == "--ctx-size":
            context = int(next(rest))
        else:
            if argument == "--parallel":
                parallel = int(next(rest))
                out += [argument, str(parallel)]
                continue
            unified |= argument == "--kv-unified"
            template |= argument.startswith("--chat-template")
            out.append(argument)
    if model:
        out += ["--model", str(model)]
    if context is not None:  # of all slots together
        out += ["--ctx-size", str(min(context if unified else context // max(parallel, 1), MODEL_CONTEXT))]
    if not template:
        out += ["--chat-template", FALLBACK_TEMPLATE]
    # Any name means the model there, and a server begins with an empty cache.
    return out + ["--alias", "*", "--disk", "none"]


def read_list():
    """{test: reason}: a test is a whole id, or one without its parameters."""
    reasons, reason = {}, None
    for line in LIST.read_text().splitlines():
        if line.startswith("# "):
            continue
        if line.startswith("because "):
            reason = line.removeprefix("because ")
        elif line:
            assert reason, f"{LIST}: {line} has no reason"
            assert line not in reasons, f"{LIST}: {line} is there twice"
            reasons[line] = reason
    return reasons


def listed(reasons, test):
    return next((name for name in (test, test.split("[")[0]) if name in reasons), None)


def why(report):
    """One line: what Kvasir said as it refused to start, else the failed assertion."""
    said = re.findall(r"^kvasir serve: (.*)", "\n".join(text for _, text in report.sections), re.M)
    for line in said:
        if not line.startswith(("ignored", "listening")):
            return line[:150]
    errors = re.findall(r"^E\s+(.*)", str(report.longrepr), re.M)
    return (errors or ["no error was printed"])[0][:150]


class Suite:
    def __init__(self):
        self.passed, self.skipped, self.failed = set(), set(), {}

    def pytest_collection_modifyitems(self, items):
        import utils  # of the suite
        utils.ServerPreset.load_all = staticmethod(lambda: None)  # it starts models of a hub

    def pytest_runtest_setup(self, item):
        random.seed(item.nodeid)  # a test that draws its prompts asks the same in each run

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.removeprefix("unit/")
        if report.failed:
            self.passed.discard(name)
            self.failed.setdefault(name, why(report))
        elif report.skipped:
            self.skipped.add(name)
        elif report.when == "call":
            self.passed.add(name)

    def pytest_sessionfinish(self, session):
        reasons = read_list()
        counts, unlisted = collections.Counter(), {}
        for name, error in sorted(self.failed.items()):
            entry = listed(reasons, name)
            if entry is None:
                unlisted[name] = error
            else:
                counts[reasons[entry]] += 1
        ran = self.passed | self.skipped | set(self.failed)
        stale = {listed(reasons, name) for name in self.passed} - {None}
        print(f"\n{len(self.passed)} of {len(ran)} passed, {len(self.failed)} failed, "
              f"{len(self.skipped)} skipped by the suite")
        for reason, count in counts.most_common():
            print(f"{count:5}  {reason}")
        for name, error in unlisted.items():
            print(f"NOT IN THE LIST  {name}: {error}")
        for entry in sorted(stale):
            print(f"PASSES NOW, BUT IS IN THE LIST  {entry}")
        if len(self.passed) < LEAST:
            print(f"TOO FEW PASSED  {len(self.passed)}, at least {LEAST} must")
        session.exitstatus = 1 if unlisted or stale or len(self.passed) < LEAST else 0


def no_download(*_args, **_kwargs):
    raise OSError("this test downloads a file")


def main():
    binary = os.environ["KVASIR_BINARY"]
    os.execv(binary, [binary, "serve", *command_line(sys.argv[1:])])


if __name__ == "__main__":
    main()


sys.modules["wget"] = types.SimpleNamespace(download=no_download)  # which the suite imports


def pytest_configure(config):
    config.pluginmanager.register(Suite())
