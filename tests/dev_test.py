#!/usr/bin/env python3
"""What `dev` and its tools do with wrong names, missing packages, interrupted runs and machines that are too slow.

Each test copies `dev` and tools/ into a folder with a project of a few tests, and writes what they call there.
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = r"""cmake_minimum_required(VERSION 3.25)
project(some NONE)
enable_testing()
add_test(NAME first COMMAND sh -c "echo first >>${CMAKE_SOURCE_DIR}/ran")
add_test(NAME second COMMAND ${CMAKE_SOURCE_DIR}/second)
add_test(NAME third COMMAND sh -c "echo third >>${CMAKE_SOURCE_DIR}/ran")
add_test(NAME fourth COMMAND sh -c "echo fourth >>${CMAKE_SOURCE_DIR}/ran")
add_test(NAME fifth COMMAND sh -c "echo fifth >>${CMAKE_SOURCE_DIR}/ran")
set_tests_properties(first PROPERTIES COST 3)
set_tests_properties(second PROPERTIES COST 2)
set_tests_properties(third PROPERTIES COST 1)
set_tests_properties(first second third PROPERTIES LABELS "quick;clock" RUN_SERIAL ON)
set_tests_properties(fifth PROPERTIES LABELS slow)
"""


class Copied(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copy(ROOT / "dev", self.root)
        shutil.copytree(ROOT / "tools", self.root / "tools")
        for name in ("build", "docs", "tests", "bin"):
            (self.root / name).mkdir()
        (self.root / "README.md").touch()

    def script(self, path, *lines):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(("#!/bin/sh", *lines, "")))
        path.chmod(0o755)

    def only_programs(self, *names):
        """A PATH of bin/ alone, where these programs of the machine are too."""
        for name in names:
            (self.root / "bin" / name).symlink_to(shutil.which(name))
        return f"{self.root}/bin"

    def run_here(self, *command, **environment):
        return subprocess.run(command, cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**os.environ, "CI": "", "KVASIR_TEST_MINUTES": "",
                                   "PATH": f"{self.root}/bin:{os.environ['PATH']}", **environment})

    def run_functions(self, text, **environment):
        """Runs lines of bash that know the functions of `dev`."""
        return self.run_here("bash", "-c", f". ./dev help >/dev/null\n{text}", **environment)

    def project(self, second):
        """Tests of which each writes its name into `ran`; `second` is what the second does."""
        (self.root / "CMakeLists.txt").write_text(PROJECT)
        self.script("second", f"echo second >>{self.root}/ran", second)
        subprocess.run(["cmake", "-G", "Ninja", "-S", self.root, "-B", self.root / "build/release"], check=True,
                       capture_output=True)

    def ran(self):
        return (self.root / "ran").read_text().split()


class Names(Copied):
    def test_a_name_that_matches_nothing_ends_with_2_and_names_near_ones(self):
        self.project("true")
        (self.root / "src/some").mkdir(parents=True)
        (self.root / "src/some/some_test.cc").write_text("TEST(PrefixIndex, NeverMatches) {}\n")
        for wrong, near in (("PrefixIndx", "PrefixIndex"), ("secnd", "second")):
            done = self.run_functions(f"install() {{ :; }}; configure() {{ :; }}; cmd_test {wrong}; echo not reached")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, f"no test's name matches '{wrong}'; near: .*{near}")

    def test_what_a_test_needs_is_built(self):
        (self.root / "build/release").mkdir()
        for name, targets in (("remote.codec_slow", "remote_test"), ("python.aws_signature_test", "aws_signature_tool"),
                              ("python.s3_store_test", "tier_test"), ("tier.kills_slow", "tier_test")):
            self.script("bin/ctest", f"echo '  Test  #1: {name}'")
            self.assertEqual(self.run_here("tools/find_tests.py", name).stdout.split(), [targets])


class Packages(Copied):
    def test_another_user_without_sudo_hears_what_to_install(self):
        path = self.only_programs("bash", "cat", "dirname", "env", "grep", "mkdir", "nproc", "tail", "uname")
        self.script("bin/id", "echo 1000")
        self.script("bin/dpkg-query", "echo cmake installed")
        self.script("bin/apt-get", f"echo called >{self.root}/apt")
        done = self.run_here("bash", "./dev", "build", PATH=path)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("run this as root or with sudo, or first run apt-get install --no-install-recommends g++ ninja-build ",
                      done.stderr)
        self.assertFalse((self.root / "apt").exists())


class Runs(Copied):
    """`dev`'s run_ctest."""

    KILLS_CTEST = "[ -e killed ] || { touch killed; kill -KILL $PPID; sleep 9; }"
    RUN = "CMAKE_BUILD_PARALLEL_LEVEL=1; run_ctest release quick -L quick; echo status $?"

    def interrupted(self):
        self.project(self.KILLS_CTEST)
        self.assertIn("status 1", self.run_functions(f"set +e\n{self.RUN}").stdout)
        self.assertEqual(self.ran(), ["first", "second"])

    def test_an_interrupted_run_goes_on_after_what_passed(self):
        self.interrupted()
        done = self.run_functions(self.RUN)
        self.assertIn("going on after the 1 tests that passed", done.stderr)
        self.assertIn("status 0", done.stdout, done.stderr)
        self.assertEqual(self.ran(), ["first", "second", "second", "third"])
        self.assertIn("passed 3, failed 0", self.run_here("tools/test_summary.py", "build/tests-quick.log").stdout)

    def test_no_test_depends_on_another(self):
        """ctest leaves out, and counts nowhere, what depends on a test that passed before the run was interrupted."""
        self.assertNotRegex((ROOT / "tests/CMakeLists.txt").read_text(), r"PROPERTIES[^)]*\bDEPENDS\b")

    def test_it_begins_again_where_something_changed(self):
        self.interrupted()
        (self.root / "tests/changed.py").touch()
        self.assertIn("status 0", self.run_functions(self.RUN).stdout)
        self.assertEqual(self.ran(), ["first", "second", "first", "second", "third"])

    def test_what_waits_for_clocks_runs_once_more_alone(self):
        self.project("[ -e late ] || { touch late; exit 1; }")
        self.assertIn("status 0", self.run_functions(self.RUN).stdout)
        self.assertEqual(self.ran(), ["first", "second", "third", "second"])

    def test_a_wrong_answer_is_not_tried_again(self):
        self.project("[ -e late ] || { touch late; echo WRONG ANSWER; exit 1; }")
        self.assertIn("status 1", self.run_functions(f"set +e\n{self.RUN}").stdout)
        self.assertEqual(self.ran(), ["first", "second", "third"])


class Closing(Copied):
    """The last lines of `dev test`."""

    STUBS = "".join(f"{name}() {{ :; }}; " for name in ("install", "make_venv", "configure", "compile", "compile_sanitized",
                                                        "without_binary", "threads_changed", "compile_ahead"))
    SLOW = "long random tests, fuzzers: ./dev test slow"

    def closing(self, arguments="", second="true", status=0, **environment):
        """(how many tests passed, which phases took minutes, what did not run)"""
        self.project(second)
        self.script("tools/sanitize.sh", "true")
        done = self.run_functions(f"{self.STUBS}cmd_test {arguments}", **environment)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        said = done.stdout[done.stdout.rindex("\npassed ") + 1:]
        lines = re.fullmatch(r"(passed .*)\n((?:failed:\n(?:  .*\n)+)?)minutes of each phase, and how busy the CPUs were:\n"
                             r"((?: +\d+:\d\d +(?:\d+%)?  .*\n)+)(?:not run: (.*)\n)?", said)
        self.assertIsNotNone(lines, said)
        counts, names, phases, not_run = lines.groups()
        self.assertEqual(names, "failed:\n  second\n" if status else "")
        self.assertEqual(done.stderr.endswith("\ndev: failed: tests\n"), bool(status))
        return counts, re.findall(r" +\d+:\d\d +(?:\d+%)?  (\S.*)\n", phases), not_run

    def test_a_run_says_what_it_left_out_and_the_commands_for_that(self):
        left_out = f"sanitizers, browsers, load, style: ./dev test all; {self.SLOW}"
        phases = ["packages", "compiling kvasir", "compiling its tests", "tests", "together"]
        self.assertEqual(self.closing(), ("passed 3, failed 0, skipped 0", phases, left_out))
        self.assertEqual(self.closing(second="false", status=1), ("passed 2, failed 1, skipped 0", phases, left_out))

    def test_a_run_of_all_leaves_out_what_is_slow(self):
        counts, phases, not_run = self.closing("all")
        self.assertEqual((counts, not_run), ("passed 4, failed 0, skipped 0", self.SLOW))
        self.assertEqual([phase for phase in phases if phase.startswith("C++")], ["C++ tests with asan", "C++ tests with tsan"])

    def test_sanitizers_for_which_no_time_is_left_are_named(self):
        over = "all with {} (KVASIR_TEST_MINUTES=1 are over)"
        self.assertEqual(self.closing("all", KVASIR_TEST_MINUTES="1")[2],
                         ", ".join((self.SLOW, over.format("asan"), over.format("tsan"))))

    def test_a_run_of_slow_leaves_out_nothing(self):
        self.assertEqual(self.closing("slow")[::2], ("passed 5, failed 0, skipped 0", None))

    def test_a_run_of_names_says_only_what_it_ran(self):
        self.assertEqual(self.closing("second"), ("passed 1, failed 0, skipped 0", ["compiling", "tests", "together"], None))


class NotCompiled(Copied):
    """A machine so slow that not all was compiled with a sanitizer."""

    def setUp(self):
        super().setUp()
        self.script("build/asan/src/base/base_test")
        self.script("bin/ctest", f'echo "$@" >{self.root}/arguments',
                    "mkdir -p build/asan/Testing/Temporary; touch build/asan/Testing/Temporary/LastTest.log")
        self.script("bin/ninja", "printf '%s: phony\\n' base_test fuzz_replay tier_test kvasir_base cmake_object_order_tier_test")

    def selected(self):
        self.assertEqual(self.run_here("tools/sanitize.sh", "asan").returncode, 0)
        return (self.root / "arguments").read_text()

    def test_a_corpus_runs_where_its_replay_was_compiled(self):
        self.assertIn(r" -R ^(base_test)\. ", self.selected())
        self.script("build/asan/fuzz/fuzz_replay")
        self.assertIn(r" -R ^(base_test)\.|_corpus$ ", self.selected())

    def test_what_was_not_compiled_is_named(self):
        self.assertEqual(self.run_functions("without_binary asan").stdout.split(), ["fuzz_replay", "tier_test"])
        self.assertEqual(self.run_functions("without_binary asan base_test tier_test").stdout.split(), ["tier_test"])


class SanitizedOnceMore(Copied):
    """What fails beside others in tools/sanitize.sh."""

    def status(self, test, said=""):
        logs = "build/asan/Testing/Temporary"
        self.script("build/asan/src/base/base_test")
        self.script("bin/ctest", 'case "$*" in *--rerun-failed*) echo passed >again; exit 0 ;; esac',
                    f"mkdir -p {logs}; echo '3:{test}' >{logs}/LastTestsFailed.log", f"echo '{said}' >{logs}/LastTest.log; exit 8")
        again = self.root / "again"
        again.unlink(missing_ok=True)
        return self.run_here("tools/sanitize.sh", "asan").returncode, again.exists()

    def test_what_waits_for_clocks_runs_once_more(self):
        self.assertEqual(self.status("schedule_test.2"), (0, True))

    def test_nothing_else_does(self):
        self.assertEqual(self.status("base_test.2"), (8, False))
        for said in ("WARNING: ThreadSanitizer: data race", "x.cc:3: runtime error: overflow"):
            self.assertEqual(self.status("schedule_test.2", said), (8, False), said)


class TenRuns(Copied):
    def test_what_failed_by_chance_is_named_and_counted(self):
        self.script("dev", "echo 'passed 8, failed 0, skipped 1'", "echo 'failed beside others, passed alone:'",
                    "echo '  python.late'", "echo '  python.later'", "echo skipped:", "echo '  python.other'")
        done = self.run_here("tools/ten_runs.sh", RUNS="2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1],
                         "runs that failed: 0 of 2; tests that failed beside others and passed alone: 4")
        self.assertEqual(done.stdout.count("  python.late\n"), 2)
        self.assertNotIn("python.other", done.stdout)

    def test_the_tenth_run_is_beside_stress_ng_which_is_installed_first(self):
        path = self.only_programs("awk", "bash", "cat", "dirname", "env", "grep", "mkdir", "mv", "nproc", "sleep", "tail", "uname")
        (self.root / "dev").rename(self.root / "dev_itself")
        self.script("dev", '[ "$1" != test ] || { echo passed 8, failed 0, skipped 0; exit; }', '. ./dev_itself "$@"')
        self.script("packed/stress-ng", "exec sleep 60")
        self.script("bin/id", "echo 0")
        self.script("bin/dpkg-query", "true")
        self.script("bin/apt-get", 'case "$*" in *" install "*" stress-ng") mv packed/stress-ng bin ;; esac')
        done = self.run_here("tools/ten_runs.sh", PATH=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.root / "bin/stress-ng").exists(), done.stderr)
        self.assertRegex(done.stdout, r"\nrun 10, beside stress-ng --vm: \d+:\d\d, passed 8, ")


class BuildCost(Copied):
    def test_it_compiles_without_ccache_and_fails_above_a_budget(self):
        self.script("bin/ninja", "echo cmake -E env A=b ccache c++ -O2 -MD -MT x -MF x.d -o src/some/x.o -c x.cc")
        self.script("bin/ccache", f'echo "$CCACHE_DISABLE $*" >{self.root}/compiled')
        self.script("bin/c++", "for i in $(seq 20000); do :; done")
        for budgets, status in (("some 1000", 0), ("some 0.0", 1), ("some 1000\ngone 1", 1)):
            (self.root / "tools/build_budget.txt").write_text(budgets)
            done = self.run_here("tools/build_cost.py", self.root / "build")
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn("not compiled: gone", done.stdout)
        self.assertEqual((self.root / "compiled").read_text(), "1 c++ -O2 -c x.cc -o /dev/null\n")


if __name__ == "__main__":
    unittest.main()
