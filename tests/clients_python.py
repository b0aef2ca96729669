"""The Python of the tests that need large packages: tests/clients/requirements.txt, installed in build/clients."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
HOME = pathlib.Path(os.environ.get("KVASIR_CLIENTS", ROOT / "build/clients"))


def run_in_own_environment():
    """Goes on in the clients' Python, which is made where it is missing or has other packages."""
    python = HOME / "venv/bin/python"
    if pathlib.Path(sys.prefix) == HOME / "venv":
        return
    wanted = (HERE / "clients/requirements.txt").read_text()
    mark = HOME / "venv/installed"
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", HOME / "venv"], check=True)
        if subprocess.run([python, "-m", "pip", "install", "-q", "--no-input", "-r",
                           HERE / "clients/requirements.txt"]).returncode:
            print("skipped: pip could not install tests/clients/requirements.txt")
            sys.exit(77)
        mark.write_text(wanted)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", LANGSMITH_TRACING="false",
                      OPENAI_API_KEY="none")
    os.execv(python, [python, *sys.argv])
