"""Files beside the repository that a test reads."""

import importlib.util
import os
import shutil
import unittest


def needs(path):
    """Skips a test, or a class of tests, where `path` is missing. In CI, where nothing may be missing, fails it."""
    if os.path.exists(path):
        return lambda test: test
    if os.environ.get("CI"):
        raise FileNotFoundError(f"this test needs {path}")
    return unittest.skip(f"needs {path}")


def needs_programs(*names):
    """The same for programs that are not on PATH."""
    missing = [name for name in names if not shutil.which(name)]
    if missing and os.environ.get("CI"):
        raise FileNotFoundError(f"this test needs {', '.join(missing)}")
    return unittest.skipIf(missing, f"needs {', '.join(missing)}")


def needs_package(module, package):
    """The same for a Python package."""
    if importlib.util.find_spec(module):
        return lambda test: test
    if os.environ.get("CI"):
        raise FileNotFoundError(f"this test needs the Python package {package}")
    return unittest.skip(f"needs the Python package {package}")


def check_needs(test, path):
    """The same inside a test, for a path that only it knows."""
    if not os.path.exists(path):
        if os.environ.get("CI"):
            test.fail(f"this test needs {path}")
        test.skipTest(f"needs {path}")


def refused(why):
    """Skips a test that this machine does not allow, as mounting. In CI, where it must be allowed, fails it."""
    if os.environ.get("CI"):
        raise AssertionError(f"this test needs what is refused here: {why}")
    raise unittest.SkipTest(why)
