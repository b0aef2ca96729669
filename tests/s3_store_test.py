#!/usr/bin/env python3
"""The conformance suite of tiers (src/tier/tier_conformance_test.cc) on moto, a store of S3 that checks signatures.

    s3_store_test.py [unittest arguments]
"""

import os
import pathlib
import subprocess
import sys
import unittest

from needs import needs
from s3_server import S3, require_moto

BUILD = pathlib.Path(os.environ.get("KVASIR_TOOLS", "build/release/tests")).parent


@needs(BUILD / "src/tier/tier_test")
class Conformance(unittest.TestCase):
    def test_a_tier_on_s3_does_what_each_tier_does(self):
        store = S3()
        self.addCleanup(store.stop)
        done = subprocess.run([BUILD / "src/tier/tier_test", "--gtest_filter=*TierConformance*"], capture_output=True,
                              text=True, env={**os.environ, **store.environment, "KVASIR_TEST_S3": store.url})
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-1000:])
        self.assertRegex(done.stdout, r"PASSED  \] [1-9]\d* tests")
        self.assertGreater(store.do(do="requests"), 200)


if __name__ == "__main__":
    require_moto()
    unittest.main()
