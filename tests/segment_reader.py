#!/usr/bin/env python3
"""Lists the stores of a disk tier's folder as `kvasir inspect --json` does: written from
docs/formats/segment.md alone, without a key.

    segment_reader.py DIR
"""

import json
import pathlib
import re
import struct
import sys
import time

PAGE = 4096
HEAD = struct.Struct("<8sIIIIQQ16sIIQ32s")
ABOUT_BYTES = 64 * 1024


def round_up(number, multiple):
    return -(-number // multiple) * multiple


class Segment:
    """The shape that the head of a file tells. ValueError: it is not a segment of this version."""

    def __init__(self, head, file_name):
        (magic, version, self.header_bytes, self.block_tokens, self.slots, self.payload_bytes, self.segment_bytes,
         self.store, self.number, zero, self.generation, self.tag) = HEAD.unpack_from(head)
        if (magic, version, zero) != (b"KVSEGMNT", 1, 0):
            raise ValueError(f"{file_name}: not a segment of version 1")
        if self.header_bytes != round_up(256 + 4 * self.block_tokens, 512) or self.slots != self.most_slots():
            raise ValueError(f"{file_name}: its head contradicts itself")

    @property
    def stride_bytes(self):
        return round_up(self.payload_bytes, PAGE)

    @property
    def record_bytes(self):
        return self.header_bytes + self.stride_bytes

    def payload_at(self, slot, slots):
        """`slots`: of the segment."""
        return round_up(PAGE + slots * (self.header_bytes + 4), PAGE) + slot * self.stride_bytes

    def most_slots(self):
        slots = self.segment_bytes // (self.record_bytes + 4)
        while slots and self.payload_at(slots, slots) > self.segment_bytes:
            slots -= 1
        return slots


def is_record(header):
    """Whether a slot has a block, as the public part says."""
    magic, version, kind, seal, _, zero = struct.unpack_from("<3sBBBBB", header)
    return (magic, version, kind, seal, zero) == (b"KVR", 1, 1, 1, 0)


def list_segment(path, listing):
    with open(path, "rb") as file:
        head = file.read(512)
        if len(head) < 512:
            return
        try:
            segment = Segment(head, path.name)
        except ValueError:
            return
        listing["segments"] += 1
        file.seek(PAGE)
        for _ in range(segment.slots):
            header = file.read(segment.header_bytes)
            if len(header) < segment.header_bytes:
                return
            if is_record(header):
                listing["blocks"] += 1
                listing["bytes"] += segment.record_bytes


def read_about(path):
    """{} where it cannot be read."""
    try:
        text = path.read_bytes()
        about = json.loads(text) if len(text) <= ABOUT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def text_of(about, key):
    return about.get(key) if isinstance(about.get(key), str) else ""


def number_of(about, key):
    value = about.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else 0


def list_stores(folder):
    stores = []
    for store in sorted(pathlib.Path(folder).iterdir()):
        if not re.fullmatch("[0-9a-f]{32}", store.name) or not store.is_dir() or store.is_symlink():
            continue
        about = read_about(store / "about.json")
        hour = min(number_of(about, "last_hour"), (1 << 31) - 1)
        listing = {"store": store.name, "model": text_of(about, "model"), "kv_format": text_of(about, "kv_format"),
                   "segments": 0, "blocks": 0, "bytes": 0, "hits": number_of(about, "hits"),
                   "last_use": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(hour * 3600)) if hour else None}
        for path in sorted(store.iterdir()):
            number = re.fullmatch(r"seg-(\d{6,10})\.kvs", path.name)
            if not number or path.is_symlink() or not path.is_file():
                continue
            if path.name == f"seg-{int(number[1]):06d}.kvs" and int(number[1]) < 1 << 32:
                list_segment(path, listing)
        stores.append(listing)
    return stores


if __name__ == "__main__":
    print(json.dumps(list_stores(sys.argv[1]), indent=2))
