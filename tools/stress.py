#!/usr/bin/env python3
"""All attacks at once beside one honest client.

    tools/stress.py [--seconds 600] [--any-latency] [--binary build/release/kvasir]

Prints the honest client's latency against its latency alone (at most 3 times), resident memory against the plan and
how it grows, how many of its answers equal, bit for bit, what it got alone (all must), and what is left at the end: no
block in use, and sums that agree. Exit status 1 where one of them is wrong.

Attackers are another tenant and run at the lowest priority: clients on other machines take no CPU of this one.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from server_harness import listening_port  # noqa: E402: it stands among the tests

FACTS = ["The brass key is in the blue drawer.", "Anna lives in Oslo.", "The code of the green safe is 4711.",
         "Boris works in the harbour.", "The spare tyre is behind the shed."]
QUESTIONS = ["Where is the brass key?", "Where does Anna live?", "What is the code of the green safe?"]
MOST_RATIO = 3
TURNS = 210  # 7 x 3 x 5 x 2 kinds


def request(port, method, path, body=None, key="evil", timeout=120):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        data = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, data, {"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def send_bodies(port, seed, end):
    import hostile_bodies
    choose = random.Random(seed)
    sizes = {size: list(hostile_bodies.bodies(size).values()) for size in (20_000, 400_000, 8_000_000)}
    while time.time() < end:
        path, body = choose.choice(sizes[choose.choice(list(sizes))])
        try:
            request(port, "POST", path, body)
        except OSError:
            pass


def hold_connections(port, seed, end):
    """600 connections that send a byte now and then, or nothing at all."""
    held = []
    while time.time() < end:
        try:
            while len(held) < 600:
                s = socket.create_connection(("127.0.0.1", port), timeout=5)
                if len(held) % 2:
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer evil\r\n"
                              b"Content-Length: 30000\r\n\r\n")
                held.append(s)
        except OSError:
            pass
        for s in list(held):
            try:
                s.setblocking(False)
                if held.index(s) % 2:
                    s.send(b" ")
                elif s.recv(1) == b"":
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                held.remove(s)
        time.sleep(0.2)


def read_nothing(port, seed, end):
    """Streams whose client takes nothing of them, and clients that hang up."""
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 500, "n": 2, "logprobs": 5, "stream": True, "ignore_eos": True})
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer evil\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
    open_sockets = []
    while time.time() < end:
        try:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", port))
            s.sendall(head)
            open_sockets.append(s)
        except OSError:
            pass
        while len(open_sockets) > 8:
            open_sockets.pop(0).close()
        time.sleep(0.05)


def erase_and_look(port, seed, end):
    paths = (("DELETE", "/v1/cache"), ("GET", "/v1/cache"), ("GET", "/metrics"), ("GET", "/props"), ("GET", "/nothing"))
    while time.time() < end:
        for method, path in paths:
            try:
                request(port, method, path)
            except OSError:
                pass
        time.sleep(0.01)


def flood(port, seed, end):
    """Requests of every kind that a tenant may send: priorities, deadlines, salts, choices, no reuse."""
    choose = random.Random(seed)
    while time.time() < end:
        body = {"prompt": choose.choices(range(5, 900), k=choose.choice((1, 40, 400))),
                "max_tokens": choose.choice((1, 8, 200)), "n": choose.choice((1, 1, 4)), "ignore_eos": True,
                "priority": choose.choice((-1000, 0, 5)), "cache_prompt": choose.random() < 0.7,
                "cache_salt": f"salt {choose.randrange(10_000)}", "timeout_ms": choose.choice((1, 100, 60_000))}
        try:
            request(port, "POST", "/v1/completions", body, key=choose.choice(("evil", "guest")),
                    timeout=choose.choice((0.01, 0.1, 5)))  # some hang up
        except OSError:
            pass


def reload_keys(port, seed, end):
    """The operator changes rules and keys; now and then the file is damaged."""
    choose = random.Random(seed)
    path, pid = pathlib.Path(os.environ["STRESS_KEYS"]), int(os.environ["STRESS_PID"])
    while time.time() < end:
        text = json.dumps(keys_file(choose))
        path.write_text(text if choose.random() < 0.8 else text[:choose.randrange(len(text))])
        os.kill(pid, signal.SIGHUP)
        time.sleep(choose.random())


def keys_file(choose=None):
    """The rules of --keys; with `choose`, those of the attackers differ each time."""
    def keys(*names):
        return [{"sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]
    evil, guest = {"keys": keys("evil")}, {"keys": keys("guest")}
    if choose:
        evil.update(weight=choose.choice((0.5, 1)), kv_max=choose.choice(("1MiB", "8MiB", "48MiB")),
                    max_running=choose.choice((1, 4, 8)), max_queued=choose.choice((0, 10, 100)))
        guest["keys"] = keys("guest" if choose.random() < 0.7 else "another")
    return {"tenants": {"honest": {"keys": keys("honest")}, "evil": evil, "guest": guest}}


ATTACKS = {"bodies": send_bodies, "connections": hold_connections, "unread": read_nothing, "erase": erase_and_look,
           "flood": flood, "reload": reload_keys}
COUNTS = {"bodies": 4, "connections": 1, "unread": 1, "erase": 2, "flood": 3, "reload": 1}
MOST_GROWTH = 0.02  # of the plan: of the least resident memory, from the second third of the time to the last
LONG = 600  # seconds: in a shorter run, what requests hold just then says more than what stays


def ask(port, turn):
    """One chat of the honest client: (seconds, its text and ids)."""
    facts = " ".join(FACTS[i % len(FACTS)] for i in range(turn % 7, turn % 7 + 3))
    body = {"messages": [{"role": "system", "content": facts}, {"role": "user", "content": QUESTIONS[turn % 3]}],
            "max_tokens": 24, "seed": turn % 5, "temperature": 0 if turn % 2 else 1, "return_token_ids": True,
            "ignore_eos": True, "logprobs": True}
    begin = time.monotonic()
    status, answer = request(port, "POST", "/v1/chat/completions", body, key="honest")
    took = time.monotonic() - begin
    if status != 200:
        return took, f"status {status}: {answer[:200]!r}"
    choice = json.loads(answer)["choices"][0]
    return took, json.dumps([choice["message"]["content"], choice["token_ids"], choice["logprobs"]])


def resident_bytes(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))


def percentiles(took):
    took = sorted(took)
    return statistics.median(took) * 1e3, took[int(len(took) * 0.99)] * 1e3, took[-1] * 1e3


def port_of(server):
    """Where it answers."""
    for _ in range(1000):
        port = listening_port(server.pid)
        with contextlib.suppress(OSError):
            if port and request(port, "GET", "/health"):
                return port
        time.sleep(0.02)
    raise SystemExit("the server does not answer")


def chat_alone(port):
    """The answer to each turn, and how long each took."""
    expected = [ask(port, turn)[1] for turn in range(TURNS)]
    took = []
    for turn in range(2 * TURNS):
        seconds, answer = ask(port, turn % TURNS)
        took.append(seconds)
        assert answer == expected[turn % TURNS], "answers differ without any attack"
        time.sleep(0.01)
    return expected, took


def chat_until(end, port, expected, server):
    """How long each chat took, the answers that differ, and the least resident bytes in the second and in the last
    third of the time: what requests hold comes and goes, what leaks stays."""
    took, wrong, least = [], [], [None, None, None]
    begin = time.time()
    while time.time() < end:
        turn = len(took) % TURNS
        try:
            seconds, answer = ask(port, turn)
        except OSError as error:
            seconds, answer = 0, repr(error)
        took.append(seconds)
        if answer != expected[turn]:
            wrong.append(answer[:200])
        third = min(int(3 * (time.time() - begin) / (end - begin)), 2)
        resident = resident_bytes(server.pid, "VmRSS")
        least[third] = min(least[third] or resident, resident)
        time.sleep(0.02)
    return took, wrong, least[1:]


def left_over(port):
    """What is not as it must be once no client asks any more."""
    for _ in range(200):
        blocks = json.loads(request(port, "GET", "/v1/cache", key="admin")[1])["cache"]["blocks"]
        if blocks["pinned"] == 0:
            break
        time.sleep(0.1)
    text = request(port, "GET", "/metrics", key="admin")[1].decode()

    def total(name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in re.findall(rf"^{name}(?:{{.*}})? .*$", text, re.M))
    wrong = [f"{blocks['pinned']} blocks are pinned"] if blocks["pinned"] else []
    for one, other in (("kvasir_requests_total", "kvasir_tenant_requests_total"),
                       ("kvasir_preemptions_total", "kvasir_tenant_preemptions_total"),
                       ("vllm:generation_tokens_total", "kvasir_tenant_generated_tokens_total")):
        if total(one) != total(other) or (one == "kvasir_requests_total" and total(one) == 0):
            wrong.append(f"{one} adds up to {total(one):.0f}, {other} to {total(other):.0f}")
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        if total(gauge) != 0:
            wrong.append(f"{gauge} is {total(gauge):.0f}")
    return wrong


def report(alone, beside, wrong, resident, plan, left, status, most_ratio, most_growth):
    allowed = plan["total_bytes"] * 1.02 + plan["process_bytes"]
    before, after = percentiles(alone), percentiles(beside)
    (second, last), most = resident
    growth = ((last or most) - (second or last or most)) / plan["total_bytes"]
    print("latency of a chat, ms    median      p99   longest")
    print("alone                 %9.1f%9.1f%10.1f   (%d chats)" % (*before, len(alone)))
    print("beside all attacks    %9.1f%9.1f%10.1f   (%d chats)" % (*after, len(beside)))
    print(f"ratio of medians {after[0] / before[0]:.2f} (at most {most_ratio})")
    print(f"resident at most {most / 2**20:.1f} MiB, planned {allowed / 2**20:.1f} MiB (total and 2% of it, and process_bytes)")
    print(f"the least resident memory grew by {100 * growth:.2f}% of the plan from the second third to the last "
          f"(at most {100 * most_growth:.0f}%)")
    print(f"answers equal to those alone: {len(beside) - len(wrong)} of {len(beside)}")
    for answer in sorted(set(wrong))[:5]:
        print("  other:", answer)
    print("left at the end:", "; ".join(left) or "nothing")
    print(f"the server ended with {status}")
    good = (after[0] <= most_ratio * before[0] and most <= allowed and growth <= most_growth and not wrong and not left
            and status == 0)
    print("good" if good else "WRONG")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--binary", default=str(ROOT / "build/release/kvasir"))
    parser.add_argument("--any-latency", action="store_true", help="other work runs on this machine")
    parser.add_argument("--attack", nargs=4, metavar=("NAME", "PORT", "SEED", "END"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        os.nice(19)
        name, port, seed, end = args.attack
        return ATTACKS[name](int(port), int(seed), float(end))
    attackers = []
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys.json"
        keys.touch(0o600)
        keys.write_text(json.dumps(keys_file()))
        server = subprocess.Popen([args.binary, "serve", "--port", "0", "--disk", "none", "--kv-memory", "64MiB", "--keys", str(keys),
                                   "--admin-key", "admin"], stderr=subprocess.DEVNULL)
        try:
            port = port_of(server)
            expected, alone = chat_alone(port)
            end = time.time() + args.seconds
            environment = {**os.environ, "STRESS_KEYS": str(keys), "STRESS_PID": str(server.pid)}
            for name in [name for name, count in COUNTS.items() for _ in range(count)]:
                command = [sys.executable, __file__, "--attack", name, str(port), str(len(attackers) + 1), str(end)]
                attackers.append(subprocess.Popen(command, env=environment))
            beside, wrong, least = chat_until(end - 1, port, expected, server)
            for attacker in attackers:
                attacker.wait(120)
            plan = json.loads(request(port, "GET", "/v1/cache", key="honest")[1])
            left = left_over(port)
            most = resident_bytes(server.pid, "VmHWM")
        finally:
            for attacker in attackers:
                attacker.kill()
            server.terminate()
            status = server.wait(60)
    return report(alone, beside, wrong, (least, most), plan, left, status,
                  float("inf") if args.any_latency else MOST_RATIO,
                  MOST_GROWTH if args.seconds >= LONG else float("inf"))


if __name__ == "__main__":
    sys.exit(main())
