"""Files beside the repository that a test reads."""

import os
import unittest


def needs(path):
    """Skips a test, or a class of tests, where `path` is missing. In CI, where nothing may be missing, fails it."""
    if os.path.exists(path):
        return lambda test: test
    if os.environ.get("CI"):
        raise FileNotFoundError(f"this test needs {path}")
    return unittest.skip(f"needs {path}")


def check_needs(test, path):
    """The same inside a test, for a path that only it knows."""
    if not os.path.exists(path):
        if os.environ.get("CI"):
            test.fail(f"this test needs {path}")
        test.skipTest(f"needs {path}")
