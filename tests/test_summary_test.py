#!/usr/bin/env python3
"""tools/test_summary.py counts what ctest did: what was skipped or could not start is not what passed."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = r"""cmake_minimum_required(VERSION 3.25)
project(some NONE)
enable_testing()
add_test(NAME passes COMMAND sh -c "echo fine")
add_test(NAME skips COMMAND sh -c "echo '[  SKIPPED ] needs x'; exit 77")
add_test(NAME Suite.Skips COMMAND sh -c "echo '[  SKIPPED ] Suite.Skips (0 ms)'")
add_test(NAME skips_within COMMAND sh -c "echo 'skipped within: Some.test_x (needs y)'")
add_test(NAME fails COMMAND sh -c "echo '[  SKIPPED ] no'; exit 1")
add_test(NAME hangs COMMAND sleep 30)
add_test(NAME is_missing COMMAND /nonexistent/program)
set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)
set_tests_properties(Suite.Skips PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
set_tests_properties(hangs PROPERTIES TIMEOUT 1)
"""


class Summary(unittest.TestCase):
    def test_each_end_is_counted_as_what_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "CMakeLists.txt").write_text(PROJECT)
            build = pathlib.Path(folder) / "build"
            subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", build], check=True, capture_output=True)
            subprocess.run(["ctest", "--test-dir", build, "-j4"], capture_output=True)
            said = subprocess.run([sys.executable, ROOT / "tools/test_summary.py", build / "Testing/Temporary/LastTest.log"],
                                  check=True, capture_output=True, text=True).stdout
        lines = said.splitlines()
        self.assertEqual(lines[0], "passed 2, failed 3, skipped 3")
        failed = lines[lines.index("failed:") + 1:lines.index("skipped:")]
        self.assertEqual(sorted(line.strip() for line in failed), ["fails", "hangs", "is_missing"])
        skipped = lines[lines.index("skipped:") + 1:]
        self.assertEqual(sorted(line.strip() for line in skipped),
                         ["Suite.Skips", "skips", "skips_within: Some.test_x (needs y)"])

    def test_what_passed_alone_is_named(self):
        def entry(name, end):
            return f"1/2 Testing: {name}\n1/2 Test: {name}\nCommand: x\n{end}\n"

        with tempfile.TemporaryDirectory() as folder:
            first, alone = pathlib.Path(folder) / "tests-a.log", pathlib.Path(folder) / "tests-a-alone.log"
            first.write_text("".join(entry(name, "Test Failed.") for name in ("late", "wrong")) + entry("x", "Test Passed."))
            alone.write_text(entry("late", "Test Passed.") + entry("wrong", "Test Failed."))
            said = subprocess.run([sys.executable, ROOT / "tools/test_summary.py", alone, first],
                                  check=True, capture_output=True, text=True).stdout
        self.assertEqual(said.splitlines(), ["passed 2, failed 1, skipped 0", "failed:", "  wrong",
                                             "failed beside others, passed alone:", "  late"])


class Skips(unittest.TestCase):
    def test_a_script_names_what_it_skips(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "some_test.py"
            script.write_text("import unittest\nclass A(unittest.TestCase):\n    @unittest.skip('why')\n"
                              "    def test_b(self): pass\nunittest.main()\n")
            said = subprocess.run([sys.executable, ROOT / "tests/run.py", script], capture_output=True, text=True)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("\nskipped within: A.test_b (why)\n", said.stdout)


if __name__ == "__main__":
    unittest.main()
