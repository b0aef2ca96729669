#!/usr/bin/env python3
"""Two servers on one folder: the one that waits takes over blocks and sessions when the first ends.

    server_rolling_restart_test.py [KVASIR_BINARY] [unittest arguments]
"""

import os
import threading
import unittest

from disk_server import WithHome, prompt, whole_blocks
from server_harness import user

TURNS = int(os.environ.get("KVASIR_ROLLING_RESTARTS", "20"))
GREEDY = {"temperature": 0, "max_tokens": 4}


class Rolling(WithHome):
    def make(self, server, text):
        status, _, made = server.request("POST", "/v1/sessions", {"messages": user(text), "sampling": GREEDY})
        self.assertEqual(status, 201, made)
        return "/v1/sessions/" + made["id"], made

    def texts(self, server, path):
        status, _, shown = server.request("GET", path)
        self.assertEqual(status, 200, shown)
        return [message["content"] for message in shown["messages"]]

    def test_the_one_that_waits_says_so(self):
        first = self.serve()
        path, made = self.make(first, "Mine.")
        self.assertTrue(made["durable"])
        ids = prompt(90, 300)
        first.ask(ids)
        first.flush()
        second = self.serve()
        disk = second.disk()
        self.assertEqual(disk["state"], "waiting", disk)
        self.assertIn("another server uses the folder of the kept sessions", disk["no_sessions"])
        for method, target in (("GET", "/v1/sessions"), ("GET", path), ("DELETE", path)):
            self.assert_refused(second.request(method, target), "unavailable", status=503)
        self.assert_refused(second.request("POST", path + "/messages", {"messages": user("x")}), "unavailable", status=503)
        status, _, refused = second.request("DELETE", "/v1/cache")
        self.assertEqual(status, 503, refused)
        for what in ("memory is erased", "kept sessions", "a store that is open in other servers"):
            self.assertIn(what, refused["error"]["message"])
        # What is made meanwhile is in memory, says so, and is kept after the take-over.
        other, made = self.make(second, "Made while waiting.")
        self.assertFalse(made["durable"])
        self.assertEqual(self.texts(second, other), ["Made while waiting."])
        self.assertEqual(self.texts(first, path), ["Mine."])
        self.assertEqual(first.end(), 0)
        second.until("taken over", lambda: second.disk()["state"] == "on" and "no_sessions" not in second.disk())
        self.assertEqual(self.texts(second, path), ["Mine."])
        self.check(second, ids, disk=whole_blocks(ids))
        second.until("written", lambda: second.get(other)["durable"])
        second.kill()
        third = self.serve()
        self.assertEqual(self.texts(third, other), ["Made while waiting."])
        self.assertEqual(self.texts(third, path), ["Mine."])

    def test_rolling_restarts_under_load(self):
        server = self.serve()
        known = {}  # path: the texts that were acknowledged
        for number in range(4):
            path, _ = self.make(server, f"session {number}")
            known[path] = [f"session {number}"]
        for turn in range(TURNS):
            following = self.serve()
            stop = threading.Event()
            failures = []

            def work(path, number, server=server, turn=turn, stop=stop, failures=failures):
                try:
                    for count in range(3 if turn % 2 else 1000):
                        text = f"turn {turn}, worker {number}, {count}"
                        done, _, answer = server.request("POST", path + "/messages", {"messages": user(text)})
                        if done != 200:
                            return
                        known[path].append(text)
                        if stop.is_set():
                            return
                except OSError:
                    # The server had ended; whether the call happened is not known: all or nothing.
                    failures.append((path, text))

            workers = [threading.Thread(target=work, args=(path, i)) for i, path in enumerate(known)]
            for worker in workers:
                worker.start()
            path, _ = self.make(following, f"made while waiting in {turn}")
            status = server.end()
            stop.set()
            for worker in workers:
                worker.join()
            self.assertEqual(status, 0)
            known[path] = [f"made while waiting in {turn}"]
            server = following
            server.until("taken over", lambda: "no_sessions" not in server.disk())
            server.until("written", lambda: server.get(path)["durable"])
            maybe = dict(failures)
            for one, texts in known.items():
                shown = self.texts(server, one)
                if one in maybe and shown == texts + [maybe[one]]:
                    texts.append(maybe[one])
                self.assertEqual(shown, texts, (turn, one))
            if len(known) > 8:  # as many requests as before
                gone = list(known)[4]
                self.assertEqual(server.request("DELETE", gone)[0], 200)
                known.pop(gone)
        self.assertEqual(len(server.get("/v1/sessions")["data"]), len(known), "none forked")


if __name__ == "__main__":
    unittest.main()
