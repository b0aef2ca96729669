#!/usr/bin/env python3
"""Checks the objects of the kernels for instructions that docs/numerics.md, rule 6, forbids.

usage: kernels.py [BUILD_FOLDER]        (default: build/release; it must be built)

No instruction whose result is an estimate, is flushed, or is summed across lanes, and no symbol of
libm, in the objects of the token path. First it shows itself that it finds each of these.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Folders whose objects compute numbers; in backend and model only the named files.
OBJECTS = ["src/tensor/**/*.o", "src/attention/**/*.o", "src/simd/**/*.o", "src/format/**/*.o",
           "src/sampling/**/*.o", "src/backend/**/cpu_backend.cc.o", "src/model/**/rope_table.cc.o"]
# Tests, and the references that tests compare with.
OTHERS = re.compile(r"(_test|reference)\.cc\.o$|_test\.dir/")
FORBIDDEN = [
    ("an estimate", r"v?rcp(ps|ss)|v?rsqrt(ps|ss)|vr(cp|sqrt)(14|28)[ps][sd]|vr(cp|sqrt)[ps]h|vexp2p[sd]"),
    ("a bf16 product or conversion, which flushes denormals", r"vdpbf16ps|vcvtne2?ps2bf16|tdpbf16ps|v\w+bf16"),
    ("arithmetic in f16", r"v(add|sub|mul|div|sqrt|max|min)[ps]h|vfn?m(add|sub)\w*[ps]h|tdpfp16ps"),
    ("a sum across lanes", r"v?h(add|sub)p[sd]|v?dpp[sd]|v?addsubp[sd]"),
    ("x87", r"f(sin|cos|sincos|ptan|patan|2xm1|yl2x|yl2xp1|scale|prem1?|mulp?|addp?|divr?p?|subr?p?|sqrt)"),
]
PATTERNS = [(why, re.compile(pattern + "$")) for why, pattern in FORBIDDEN]
INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\t([a-z][\w.]*)")
SEEN = re.compile(r"vfmadd|\bmadd|fmla|fmadd")  # in kernels there are some of these, or nothing was read

# Functions of libm, but they compute nothing: they set how the processor rounds.
ENVIRONMENT = {"fesetround", "fegetround", "fegetenv", "fesetenv"}

SAMPLE = """
__attribute__((target("avx2"))) void f() {
  __asm__ volatile("rcpps %xmm0, %xmm0\\n vrsqrtps %ymm0, %ymm0\\n vhaddps %ymm0, %ymm0, %ymm0\\n"
                   "vrcp14ps %zmm0, %zmm0\\n vdpbf16ps %zmm0, %zmm0, %zmm0\\n fyl2x\\n"
                   "vaddph %zmm0, %zmm0, %zmm0\\n");
}
double exp(double);
double g(double x) { return exp(x); }
"""
SAMPLE_FINDS = {"rcpps", "vrsqrtps", "vhaddps", "vrcp14ps", "vdpbf16ps", "fyl2x", "vaddph", "exp"}


def output_of(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def libm_symbols():
    """Names that libm exports."""
    path = output_of("c++", "-print-file-name=libm.so.6").strip()
    lines = output_of("nm", "-D", "--defined-only", path).splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] in "TWiI"}
    if not {"exp", "expf", "sin", "pow", "tanhf"} <= names:
        sys.exit(f"kernels: {path} does not look like libm")
    return names - ENVIRONMENT


def findings(path, libm):
    """[(name, reason)] of one object, and the number of its instructions and of its products."""
    found, instructions, products = [], 0, 0
    for line in output_of("objdump", "-d", "--no-show-raw-insn", str(path)).splitlines():
        match = INSTRUCTION.match(line)
        if not match:
            continue
        name = match[1]
        instructions += 1
        products += bool(SEEN.search(name))
        found += [(name, why) for why, pattern in PATTERNS if pattern.match(name)]
    for line in output_of("nm", "-u", str(path)).splitlines():
        symbol = line.split()[-1].split("@")[0]
        if symbol in libm:
            found.append((symbol, "a function of libm"))
    return found, instructions, products


def self_test(libm):
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "sample.c"), pathlib.Path(folder, "sample.o")
        source.write_text(SAMPLE)
        subprocess.run(["c++", "-x", "c", "-O1", "-fno-builtin", "-c", str(source), "-o", str(target)],
                       check=True)
        found = {name for name, _ in findings(target, libm)[0]}
    if found != SAMPLE_FINDS:
        sys.exit(f"kernels: of the sample, {sorted(SAMPLE_FINDS ^ found)} was not classified right")


def main():
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
    libm = libm_symbols()
    if output_of("uname", "-m").strip() == "x86_64":
        self_test(libm)
    objects = set()
    for pattern in OBJECTS:
        of_pattern = {path for path in build.glob(pattern) if not OTHERS.search(str(path))}
        if not of_pattern:
            sys.exit(f"kernels: no object in {build} is {pattern}: not built, or joined with others?")
        objects |= of_pattern
    objects = sorted(objects)
    bad, instructions, products = 0, 0, 0
    for path in objects:
        found, some, more = findings(path, libm)
        instructions, products = instructions + some, products + more
        for name, why in sorted(set(found)):
            print(f"{path.relative_to(build)}: {name}: {why}")
            bad += 1
    if products < 1000:
        sys.exit(f"kernels: {len(objects)} objects in {build} with {products} products: not built?")
    print(f"kernels: {len(objects)} objects, {instructions} instructions, {bad} of them not allowed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
