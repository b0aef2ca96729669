#!/usr/bin/env python3
"""How long kvasir serve takes to be ready: the first start of a model, which packs its weights and
writes their image, beside the starts after it, which verify and map that image. From the start of the
process to the first 200 of /ready; the page cache is warm. Aims: under 0.3 s for a model of 1B
parameters, and a tenth of the first start.

usage: start_bench.py KVASIR --model MODEL [--rounds 7] [--firsts 3] [--json] [-- FLAGS OF SERVE]

Starts take turns: a first one in a new cache folder, then rounds/firsts later ones. `run` is
`kvasir run --ids 1,2,3 --max-tokens 1`, a whole process, with the image. Exit status 1 when an answer
differs between a start with the image and one without, or a start was not what it is counted as.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

AIM_S, AIM_RATIO = 0.3, 10
IDS = ["--ids", "1,2,3", "--max-tokens", "8", "--ignore-eos", "--temperature", "0", "--json"]


def port_of(server):
    """The port that a starting server says; its standard error is text."""
    for line in server.stderr:
        if found := re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line):
            return int(found[1])
    sys.exit(f"start: kvasir serve ended with {server.wait()}")


def is_ready(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False


class Starts:
    def __init__(self, args):
        self.args = args
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="start-bench-", dir=args.scratch))
        self.flags = ["--model", args.model, "--cache-dir", str(self.folder / "cache"), *args.more]
        os.environ["XDG_STATE_HOME"] = str(self.folder / "state")

    def seconds_to_ready(self):
        begin = time.perf_counter()
        server = subprocess.Popen([self.args.kvasir, "serve", "--disk", "none", "--port", "0", *self.flags],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            port = port_of(server)
            while not is_ready(port):
                if server.poll() is not None:
                    sys.exit(f"start: kvasir serve ended with {server.returncode}")
                time.sleep(0.001)
            return time.perf_counter() - begin
        finally:
            server.terminate()
            server.wait()

    def seconds_to_run(self):
        begin = time.perf_counter()
        subprocess.run([self.args.kvasir, "run", "--ids", "1,2,3", "--max-tokens", "1", *self.flags],
                       check=True, capture_output=True)
        return time.perf_counter() - begin

    def tokens(self, *more):
        done = subprocess.run([self.args.kvasir, "run", *IDS, *self.flags, *more], check=True,
                              capture_output=True, text=True)
        return json.loads(done.stdout)["tokens"]

    def image(self):
        """The one image there is: its path and the time it was written."""
        images = list((self.folder / "cache" / "images").glob("*.kvw"))
        if len(images) != 1:
            sys.exit(f"start: {len(images)} images where one is expected")
        return images[0], images[0].stat().st_ino

    def forget(self):
        shutil.rmtree(self.folder / "cache", ignore_errors=True)


def measure(args):
    starts = Starts(args)
    times = {"first": [], "later": [], "run": []}
    try:
        for _ in range(args.firsts):
            starts.forget()
            times["first"].append(starts.seconds_to_ready())
            written = starts.image()
            for _ in range(-(-args.rounds // args.firsts)):
                times["later"].append(starts.seconds_to_ready())
                times["run"].append(starts.seconds_to_run())
            if starts.image() != written:
                sys.exit("start: a later start wrote the image again")
        if starts.tokens() != starts.tokens("--image-cap", "0"):
            sys.exit("start: the image changes the answer")
        return times, written[0].stat().st_size
    finally:
        shutil.rmtree(starts.folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=7, help="later starts, at least")
    parser.add_argument("--firsts", type=int, default=3)
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR", "/var/tmp"),
                        help="a folder with room for the image")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("more", nargs="*", help="more flags of kvasir serve and run, after --")
    args = parser.parse_args()
    times, image_bytes = measure(args)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["first"] / medians["later"]
    rows = [{"start": name, "seconds": medians[name], "seconds_min": min(values), "seconds_max": max(values),
             "count": len(values), **({"aim_seconds": AIM_S, "times_faster_than_first": ratio,
                                       "aim_times_faster": AIM_RATIO} if name == "later" else {})}
            for name, values in times.items()]
    if args.json:
        for row in rows:
            print(json.dumps({"model": args.model, "image_bytes": image_bytes, **row}))
        return 0
    print(f"{args.model}: an image of {image_bytes / 2**30:.2f} GiB")
    for row in rows:
        aim = f"   {ratio:.1f} times faster than the first; aims {AIM_S} s and {AIM_RATIO}" if "aim_seconds" in row else ""
        print(f"  {row['start']:<6}{row['seconds']:8.3f} s ({row['seconds_min']:.3f} .. {row['seconds_max']:.3f},"
              f" of {row['count']}){aim}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
