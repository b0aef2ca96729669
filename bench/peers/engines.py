"""The engines that compare.py runs: for a row, the command and how its answer is read.

A row is a Row; a command's answer is a list of speeds in tokens per second, one per repetition.
"""

import dataclasses
import json
import os
import subprocess

import server_load

PREFILL_REPEATS = {512: 3, 2048: 2}  # longer ones: 1
DECODE_TOKENS = {0: 48, 4096: 32, 16384: 16, 32768: 8}
SHARED_TOKENS, SEQUENCES, ANSWER_TOKENS = 2048, 8, 32
KVASIR_KV = {"f16": "f16", "q8_0": "int8", "q4_0": "int4"}


@dataclasses.dataclass(frozen=True)
class Row:
    test: str  # prefill, decode, shared or hog
    amount: int  # tokens of the prompt, depth, tokens of the shared prefix, number of hogs
    weights: str  # name of the GGUF file without its ending
    kv: str = "f16"
    shape: str = ""  # of make_model.py; empty: llama-1b, the one of docs/performance.md

    @property
    def title(self):
        """The name without weights and KV."""
        return f"{self.shape}/{self.test}-{self.amount}".lstrip("/")

    @property
    def name(self):
        return f"{self.title}/{self.weights}/{self.kv}"

    @property
    def model(self):
        return f"{self.shape}/{self.weights}".lstrip("/")

    @property
    def depth(self):
        return self.amount if self.test == "decode" else 0


def row_of(name):
    *shape, test, weights, kv = name.split("/")
    kind, amount = test.rsplit("-", 1)
    return Row(kind, int(amount), weights, kv, *shape)


def run(command, env=None):
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(env or {})}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


class Kvasir:
    def __init__(self, o, model):
        self.o, self.model = o, model
        # Builds from before the disk tier refuse the flag.
        has_disk = "--disk DIR" in run([o.kvasir, "serve", "--help"])
        self.no_disk = ["--disk", "none"] if has_disk else []

    def flags(self, row):
        return [
            "--model",
            self.model,
            "--kv-format",
            KVASIR_KV[row.kv],
            "--threads",
            str(self.o.threads),
            *self.o.kvasir_flag,
        ]

    def version(self):
        return run([self.o.kvasir, "--version"]).strip()

    def measure(self, row):
        if row.test == "shared":
            return server_load.decode_together(
                [
                    self.o.kvasir,
                    "serve",
                    "--port",
                    "0",
                    *self.no_disk,
                    "--parallel",
                    str(SEQUENCES),
                    *self.flags(row),
                ],
                SHARED_TOKENS,
                SEQUENCES,
                ANSWER_TOKENS,
            )
        command = [self.o.kvasir, "bench", "--json", "--speed-only", *self.flags(row), "--repeats"]
        if row.test == "prefill":
            command += [str(PREFILL_REPEATS.get(row.amount, 1)), "-p", str(row.amount), "-n", "0"]
        else:
            command += ["3", "-p", "0", "-n", str(DECODE_TOKENS[row.depth]), "-d", str(row.depth)]
        answer = json.loads(run(command))
        [result] = answer["results"]
        speeds = [result["tok_s_min"], result["tok_s"], result["tok_s_max"]]
        return {"tok_s": speeds, "target": answer["target"]}


class LlamaFamily:
    """llama.cpp and ik_llama.cpp: the same tools, other habits."""

    def __init__(self, o, model, name):
        self.o, self.model, self.name, self.ik = o, model, name, name == "ik_llama.cpp"
        self.bin = os.path.join(o.peers, name + "-bin")

    def tool(self, name):
        return os.path.join(self.bin, name)

    def env(self):
        # Their threads spin: unpinned, two of them can end up on one CPU and wait for each other.
        cpus = sorted(os.sched_getaffinity(0))[: self.o.threads]
        return {"GOMP_CPU_AFFINITY": " ".join(map(str, cpus))}

    def version(self):
        with open(os.path.join(self.o.peers, f"{self.name}-version"), encoding="utf-8") as file:
            return file.read().strip()

    def run_tool(self, name, flags):
        return run([self.tool(name), "-m", self.model, *flags.split()], self.env())

    def measure(self, row):
        threads = self.o.threads
        if row.test == "shared":
            tokens = SHARED_TOKENS + SEQUENCES * ANSWER_TOKENS + 512
            flags = "-rtr" if self.ik else "-fa on --kv-unified"
            out = self.run_tool(
                "llama-batched-bench",
                f"-t {threads} -c {tokens} -b 2048 -ub 512 -npp {SHARED_TOKENS} "
                f"-ntg {ANSWER_TOKENS} -npl {SEQUENCES} -pps {flags}",
            )
            return {"tok_s": [batched_speed(out)]}
        if row.test == "decode" and row.depth > 0:
            command = [self.tool("depth_bench"), self.model, str(threads), row.kv, str(row.depth)]
            out = run([*command, str(DECODE_TOKENS[row.depth]), "0", "3"], self.env())
            return {"tok_s": json.loads(out.splitlines()[-1])["decode"]}
        prefill = row.test == "prefill"
        prompt, answer = (row.amount, 0) if prefill else (0, DECODE_TOKENS[0])
        repeats = PREFILL_REPEATS.get(row.amount, 1) if prefill else 3
        # ik_llama.cpp repacks on demand, which makes its decode faster and its prefill slower.
        repack = "-rtr 1" if self.ik and not prefill else ""
        out = self.run_tool(
            "llama-bench",
            f"-t {threads} -p {prompt} -n {answer} -r {repeats} -ctk {row.kv} -ctv {row.kv} "
            f"-fa 1 -o json {repack}",
        )
        [result] = json.loads(out[out.index("[") :])
        return {"tok_s": result["samples_ts"]}


def batched_speed(out):
    """S_TG t/s of llama-batched-bench's one row."""
    rows = [[c.strip() for c in l.strip("| ").split("|")] for l in out.splitlines() if "|" in l]
    [head] = [r for r in rows if "S_TG t/s" in r]
    [values] = [r for r in rows if r[0].isdigit()]
    return float(values[head.index("S_TG t/s")])


ENGINES = ("kvasir", "llama.cpp", "ik_llama.cpp")


def engine_of(name, o, model):
    return Kvasir(o, model) if name == "kvasir" else LlamaFamily(o, model, name)
