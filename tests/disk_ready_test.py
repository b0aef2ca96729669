#!/usr/bin/env python3
"""How much later a server is ready that finds a large disk tier: 100,000 records whose headers are
real and whose payloads are holes, none of it in the page cache.

    disk_ready_test.py [KVASIR_BINARY] [--records N] [unittest arguments]

Without --records 2,000, which only shows that it works. With 100,000 it measures, and the limit holds.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

from disk_server import DiskServer, prompt
from server_harness import ROOT

RECORDS = 2_000
if "--records" in sys.argv:
    at = sys.argv.index("--records")
    RECORDS = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
MEASURES = RECORDS >= 100_000
ROUNDS = 7 if MEASURES else 1
LIMIT_S = 0.25
TOOL = pathlib.Path(os.environ.get("KVASIR_TOOLS", ROOT / "build/release/tests")) / "disk_tool"
CAP = ("--disk-cap", "20GiB")


def drop(folder):
    """None of the folder's bytes is in the page cache."""
    os.sync()
    for path in folder.rglob("*.kvs"):
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


class Ready(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-ready-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)

    def seconds_until_ready(self, disk):
        begin = time.monotonic()
        server = DiskServer(self.home, disk=disk)
        try:
            self.assertEqual(server.request("GET", "/ready")[0], 200)
            took = time.monotonic() - begin
            found = server.disk()
            return took, found["blocks"] if found else None
        finally:
            server.kill()

    def test_many_records_delay_a_start_a_little(self):
        disk = ("--disk", str(self.home / "kv"), *CAP)
        server = DiskServer(self.home, disk=disk)
        server.ask(prompt(1, 100))
        server.flush()
        server.kill()
        subprocess.run([TOOL, self.home / "kv", self.home / "state/kvasir", str(RECORDS)], check=True)
        times = {"none": [], "disk": []}
        for _ in range(ROUNDS):
            times["none"].append(self.seconds_until_ready(("--disk", "none"))[0])
            drop(self.home / "kv")
            took, blocks = self.seconds_until_ready(disk)
            self.assertEqual(blocks, RECORDS + 6)
            times["disk"].append(took)
        later = statistics.median(times["disk"]) - statistics.median(times["none"])
        print(f"ready {later * 1000:.0f} ms later with {RECORDS + 6} records: "
              f"{statistics.median(times['disk']) * 1000:.0f} against {statistics.median(times['none']) * 1000:.0f} ms, "
              f"the medians of {ROUNDS}", file=sys.stderr)
        if MEASURES:
            self.assertLessEqual(later, LIMIT_S, times)


if __name__ == "__main__":
    unittest.main()
