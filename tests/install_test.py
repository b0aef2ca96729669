#!/usr/bin/env python3
"""`cmake --install` and the Debian package: each file in its place, and a binary that needs no other."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

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
}


def succeed(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Installed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def files_below(self, prefix):
        return {str(p.relative_to(prefix)) for p in prefix.rglob("*") if not p.is_dir()}

    def check(self, prefix):
        """All that is below `prefix`, and what its binary answers without anything else."""
        self.assertEqual(self.files_below(prefix), FILES)
        for name in sorted(FILES):
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

    def test_what_is_only_built_finds_the_bundled_model_from_any_folder(self):
        environment = {k: v for k, v in os.environ.items() if k != "KVASIR_MODEL"}
        said = json.loads(succeed(BINARY, "plan", "--json", cwd="/", env=environment))
        given = json.loads(succeed(BINARY, "plan", "--json", "--model", ROOT / "models/kvasir-demo"))
        self.assertEqual(said, given)

    def test_cmake_installs_all_that_a_run_needs(self):
        prefix = self.folder / "usr"
        succeed("cmake", "--install", BUILD, "--prefix", prefix)
        self.check(prefix)

    @unittest.skipUnless(all(map(shutil.which, ("dpkg-deb", "dpkg-shlibdeps", "file"))), "needs Debian's tools")
    def test_the_package_holds_the_same_and_names_its_libraries(self):
        succeed("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder / "made")
        [package] = (self.folder / "made").glob("*.deb")
        depends = succeed("dpkg-deb", "--field", package, "Depends")
        for library in ("libc6", "libstdc++6", "libfmt", "libpcre2-8-0", "libsqlite3-0", "libssl", "libutf8proc"):
            self.assertIn(library, depends)
        for line in succeed("dpkg-deb", "--contents", package).splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) root/root ")
        succeed("dpkg-deb", "--extract", package, self.folder / "root")
        self.assertEqual({p.name for p in (self.folder / "root").iterdir()}, {"usr"})
        self.check(self.folder / "root/usr")


if __name__ == "__main__":
    unittest.main()
