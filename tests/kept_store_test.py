#!/usr/bin/env python3
"""The kept store of tests/data: each later build reads it bit for bit, or does not find it.

    kept_store_test.py [KVASIR_BINARY] [--make] [unittest arguments]

--make writes tests/data/kept-store.tar.xz anew: the secret of a state folder, and the folder of a disk
tier with the blocks of one prompt. Only a new layout or a new format needs that.
"""

import io
import json
import os
import pathlib
import sys
import tarfile
import unittest

import segment_reader
from disk_server import WithHome, answer, prompt, run, whole_blocks
from server_harness import ROOT

MAKE = "--make" in sys.argv
if MAKE:
    sys.argv.remove("--make")
ARCHIVE = ROOT / "tests/data/kept-store.tar.xz"
MODEL = ("--model", str(ROOT / "tests/data/tiny-qwen2"))
IDS = prompt("kept", 101, 60)
YEARS = ("--disk-ttl", "87840")  # ten years: the longest


def pack(home):
    """The files of a home, without anything of who made them."""
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in sorted([home / "state", home / "kv", *home.glob("state/**/*"), *home.glob("kv/**/*")]):
            entry = tarfile.TarInfo(str(path.relative_to(home)))
            if path.is_dir():
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                data = path.read_bytes()
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def unpack(home):
    """Files with 0600 and folders with 0700, whatever the umask."""
    with tarfile.open(ARCHIVE) as archive:
        for entry in archive:
            path = home / entry.name
            if entry.isdir():
                path.mkdir()
                path.chmod(0o700)
            else:
                path.write_bytes(archive.extractfile(entry).read())
                path.chmod(0o600)


class KeptStore(WithHome):
    def disk(self):
        return ("--disk", str(self.home / "kv"), "--disk-cap", "8MiB", *YEARS)

    @unittest.skipUnless(MAKE, "only with --make")
    def test_make(self):
        server = self.serve(*MODEL, disk=self.disk())
        made = server.ask(IDS)
        server.flush()
        self.assertEqual(server.end(), 0)
        (self.home / "state/answer.json").write_text(json.dumps(answer(made)))
        pack(self.home)

    @unittest.skipIf(MAKE, "not with --make")
    def test_is_read_bit_for_bit_or_not_found(self):
        unpack(self.home)
        kept, = segment_reader.list_stores(self.home / "kv")
        self.assertEqual(kept["blocks"], whole_blocks(IDS) // 16)
        before = json.loads((self.home / "state/answer.json").read_text())
        status, said, printed = run("fsck", "--json", "--disk", str(self.home / "kv"), home=self.home)
        self.assertEqual(status, 0, said)
        checked, = json.loads(printed)["stores"]
        self.assertEqual((checked["store"], checked["blocks"], checked["damaged"]), (kept["store"], kept["blocks"], []))
        server = self.serve(*MODEL, disk=self.disk())
        receipt = self.check(server, IDS, flags=MODEL)
        now = json.loads(json.dumps(answer(server.ask(IDS))))
        self.assertEqual(server.end(), 0)
        # Another numerics version, layout or format has another store, and this one is left alone.
        stores = {store["store"]: store for store in segment_reader.list_stores(self.home / "kv")}
        is_found = set(stores) == {kept["store"]}
        self.assertEqual(receipt["reused"]["disk"], whole_blocks(IDS) if is_found else 0, receipt)
        self.assertEqual(stores[kept["store"]]["blocks"], kept["blocks"])
        if is_found:
            self.assertEqual(now, before)
        print(f"kept store {kept['store']}: {'read' if is_found else 'not found'}", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
