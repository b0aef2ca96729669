#!/usr/bin/env python3
"""`cmake --install` and the Debian package: each file in its place, and a binary that needs no other."""

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from needs import needs_programs

ROOT = pathlib.Path(os.environ.get("KVASIR_ROOT", pathlib.Path(__file__).resolve().parent.parent))
BINARY = pathlib.Path(os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
BUILD = BINARY.parent
QUESTION = "The brass key is in the blue drawer. Where is the brass key?"
MODEL = "share/kvasir/models/kvasir-demo"
FILES = {
    "bin/kvasir",
    "share/doc/kvasir/CHANGELOG.md",
    "share/doc/kvasir/LICENSE",
    *(f"{MODEL}/{path.name}" for path in (ROOT / "models/kvasir-demo").iterdir() if path.name != "golden.json"),
    "share/kvasir/grafana/kvasir.json",
    "share/kvasir/prometheus/alerts.yml",
    *(f"share/doc/kvasir/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".svg")),
    "share/bash-completion/completions/kvasir",
    "share/zsh/vendor-completions/_kvasir",
    "share/fish/vendor_completions.d/kvasir.fish",
    "share/man/man1/kvasir.1.gz",
}
SERVICE = {"lib/systemd/system/kvasir.service", "lib/systemd/system/kvasir-memory.service", "lib/kvasir/memory-max"}


def succeed(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@needs_programs("man")
class Installed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def files_below(self, prefix):
        return {str(p.relative_to(prefix)) for p in prefix.rglob("*") if not p.is_dir()}

    def check(self, prefix, more=frozenset()):
        """All that is below `prefix`, and what its binary answers without anything else."""
        commands = re.findall(r"(?m)^  ([a-z]+) +\w", succeed(prefix / "bin/kvasir", "--help").split("Commands:")[1])
        files = FILES | more | {f"share/man/man1/kvasir-{command}.1.gz" for command in commands}
        self.assertEqual(self.files_below(prefix), files)
        self.check_man_pages(prefix / "share/man/man1", commands)
        # What messages of the program name is there.
        named = set(re.findall(rb"docs/[a-z/-]+\.md", (prefix / "bin/kvasir").read_bytes()))
        self.assertIn(b"docs/from-llama-server.md", named)
        self.assertEqual([name for name in named if f"share/doc/kvasir/{name.decode()}" not in files], [])
        for name in sorted(files):
            self.assertNotIn(str(ROOT).encode(), (prefix / name).read_bytes(), name)
        home = self.folder / "home"
        home.mkdir()
        options = {"cwd": home, "env": {"HOME": str(home), "PATH": "/usr/bin:/bin"}}
        binary = prefix / "bin/kvasir"
        answer = json.loads(succeed(binary, "run", "--chat", "--json", "--prompt", QUESTION, **options))
        self.assertEqual(answer["text"], "The brass key is in the blue drawer.")
        project = re.search(r"project\(kvasir VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
        self.assertTrue(succeed(binary, "--version", **options).startswith(f"kvasir {project[1]} "))
        shutil.rmtree(prefix / MODEL)
        lost = subprocess.run([binary, "run", "--prompt", "x"], capture_output=True, text=True, **options)
        self.assertEqual(lost.returncode, 2, "the model must come from below the prefix")
        self.assertIn(str(prefix / MODEL), lost.stderr)

    def check_man_pages(self, folder, commands):
        for command in commands:
            text = gzip.decompress((folder / f"kvasir-{command}.1.gz").read_bytes()).decode()
            self.assertRegex(text, rf"^\.TH KVASIR-{command.upper()} 1 ")
            self.assertRegex(text, rf"(?m)^\.SH NAME\nkvasir\\-{command} \\- \w")
            shown = text.replace("\\-", "-")
            for flag in re.findall(r"(?m)^  (--?[a-z0-9-]+)", succeed(BINARY, "help", command).split("Flags:")[1]):
                self.assertRegex(shown, rf"(?m)^\.B {flag}\b", command)
        for command, says in (("", "completions"), ("-serve", "--kv-memory SIZE")):
            done = subprocess.run(["man", "--warnings", "-l", folder / f"kvasir{command}.1.gz"], capture_output=True,
                                  text=True, env={**os.environ, "MANROFFSEQ": "", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(says, done.stdout)

    def test_what_is_only_built_finds_the_bundled_model_from_any_folder(self):
        environment = {k: v for k, v in os.environ.items() if k != "KVASIR_MODEL"}
        said = json.loads(succeed(BINARY, "plan", "--json", cwd="/", env=environment))
        given = json.loads(succeed(BINARY, "plan", "--json", "--model", ROOT / "models/kvasir-demo"))
        self.assertEqual(said, given)

    def test_cmake_installs_all_that_a_run_needs(self):
        prefix = self.folder / "usr"
        succeed("cmake", "--install", BUILD, "--prefix", prefix)
        self.check(prefix)

    @needs_programs("dpkg-deb", "dpkg-shlibdeps", "file")
    def test_the_package_holds_the_same_and_names_its_libraries(self):
        succeed("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder / "made")
        [package] = (self.folder / "made").glob("*.deb")
        depends = succeed("dpkg-deb", "--field", package, "Depends")
        for library in ("libc6", "libstdc++6", "libfmt", "libpcre2-8-0", "libsqlite3-0", "libssl", "libutf8proc",
                        "libzstd1"):
            self.assertIn(library, depends)
        for line in succeed("dpkg-deb", "--contents", package).splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) root/root ")
        succeed("dpkg-deb", "--extract", package, self.folder / "root")
        root = self.folder / "root"
        self.assertEqual({p.name for p in root.iterdir()}, {"usr", "etc"})
        self.assertEqual(self.files_below(root / "etc"), {"kvasir/serve.json"})
        self.check(root / "usr", SERVICE)
        succeed("dpkg-deb", "--control", package, self.folder / "control")
        self.assertEqual((self.folder / "control/conffiles").read_text(), "/etc/kvasir/serve.json\n")
        for script in ("postinst", "prerm", "postrm"):
            self.assertEqual((self.folder / "control" / script).stat().st_mode & 0o777, 0o755)
            succeed("sh", "-n", self.folder / "control" / script)


if __name__ == "__main__":
    unittest.main()
