#!/usr/bin/env python3
"""Runs a script of tests, and prints a line for each test that unittest skips.

usage: run.py SCRIPT ARGS...
"""
import pathlib
import runpy
import sys
import unittest

add_skip = unittest.TextTestResult.addSkip


def add_and_name(result, test, reason):
    add_skip(result, test, reason)
    print(f"\nskipped within: {test.id().removeprefix('__main__.')} ({reason})", flush=True)


unittest.TextTestResult.addSkip = add_and_name
del sys.argv[0]
sys.path[0] = str(pathlib.Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
