#!/usr/bin/env python3
"""Sessions of clients that leave or wait, and of stores that are full.

    server_sessions_limits_test.py [KVASIR_BINARY] [unittest arguments]
"""

import unittest

from server_harness import Server, post_bytes, user
from session_calls import FACT, GREEDY, Calls


def read_all_until_done(s):
    received = b""
    while b"[DONE]" not in received:
        part = s.recv(65536)
        if not part:
            break
        received += part
    return received


LONG = {"max_tokens": 1500}  # it still runs when a busy machine has sent all that shall wait for it


class SlowTest(Calls):
    """Clients that leave, and calls that wait: without KV each token takes longer than the one before."""

    flags = ("--cache", "none")

    def test_a_client_that_hangs_up_leaves_the_session_as_it_was(self):
        path = self.make(messages=user(FACT))
        before = self.state(path)
        self.stream(path, messages=user("More.")).close()
        self.call("POST", path + "/truncate", {"messages": 1})  # waits until the turn is free
        self.assertEqual(self.state(path), before)
        self.assert_no_pins()

    def test_a_client_that_hangs_up_can_keep_the_text_so_far(self):
        path = self.make(messages=user(FACT))
        self.stream(path, keep_partial=True).close()
        self.server.until("partial answer", lambda: len(self.show(path)["messages"]) == 2)
        partial = self.show(path)["messages"][1]
        self.assertTrue(partial["generated"])
        self.assertGreater(len(partial["content"]), 0)
        self.generate(path, "What is my name?")
        self.assert_no_pins()

    def test_hang_ups_in_every_state(self):
        path = self.make(messages=user(FACT))
        running = self.stream(path, **LONG)
        waiting = []
        for end, body in [("/generate", {}), ("/messages", {"messages": user("never")}), ("/forget", {"index": 0})]:
            s = self.server.open()
            s.sendall(post_bytes(path + end, body))
            waiting.append(s)
        for s in waiting:
            self.server.until_read(s)
        waiting[0].close()
        running.close()
        self.server.until("the waiting calls ran", lambda: self.show(path)["messages"] == [] or
                          self.texts(path) == ["never"])
        for s in waiting[1:]:
            s.close()
        self.assert_no_pins()

    def test_calls_wait_in_order_and_the_ninth_is_refused(self):
        path = self.make(messages=user(FACT))
        running = self.stream(path, **LONG)
        clients = []
        for i in range(8):
            s = self.server.open()
            s.sendall(post_bytes(path + "/messages", {"messages": user(f"m{i}")}))
            clients.append(s)
            self.server.until_read(s)
        error = self.call("POST", path + "/messages", {"messages": user("late")}, 429)
        self.assertEqual(error["error"]["code"], "exhausted")
        self.assertEqual(len(self.show(path)["messages"]), 1)  # reading does not wait
        running.close()
        for s in clients:
            self.assertIn(b"200 OK", s.recv(4096))
            s.close()
        self.assertEqual(self.texts(path), [FACT] + [f"m{i}" for i in range(8)])

    def test_delete_waits_for_the_answer(self):
        path = self.make(messages=user(FACT))
        running = self.stream(path, max_tokens=60)
        self.call("DELETE", path)
        self.assertIn(b"[DONE]", read_all_until_done(running))
        running.close()
        self.bad("GET", path, None, status=404)


class LimitsTest(unittest.TestCase):
    def test_a_full_store_refuses_and_drops_nothing(self):
        with Server("--sessions", "3") as server:
            made = [server.request("POST", "/v1/sessions", {}) for _ in range(4)]
            self.assertEqual([status for status, _, _ in made], [201, 201, 201, 429])
            self.assertIn("--sessions", made[3][2]["error"]["message"])
            path = "/v1/sessions/" + made[0][2]["id"]
            self.assertEqual(server.request("POST", path + "/fork", {})[0], 429)
            self.assertEqual(server.metric("kvasir_sessions"), 3)
            self.assertEqual(server.request("DELETE", path)[0], 200)
            self.assertEqual(server.metric("kvasir_sessions"), 2)
            self.assertEqual(server.request("POST", "/v1/sessions", {})[0], 201)

    def test_a_full_memory_refuses_and_changes_nothing(self):
        with Server("--session-memory", "1MiB") as server:
            path = "/v1/sessions/" + server.request("POST", "/v1/sessions", {"sampling": GREEDY})[2]["id"]
            text = "x" * 100_000
            statuses = [server.request("POST", path + "/messages", {"messages": user(text)})[0] for _ in range(12)]
            fitted = statuses.index(429)
            self.assertEqual(statuses, [200] * fitted + [429] * (12 - fitted))
            self.assertIn(fitted, range(6, 9))  # pieces have a quarter
            self.assertEqual(len(server.get(path)["messages"]), fitted)
            for end, body in [("/forget", {"index": 0, "begin": 0, "end": 99_000}), ("/forget", {"index": 1}),
                              ("/truncate", {"messages": 2})]:
                self.assertEqual(server.request("POST", path + end, body)[0], 200)
            self.assertEqual(server.request("POST", path + "/messages", {"messages": user(text)})[0], 200)

    def test_no_sessions_at_all(self):
        for flags in [("--sessions", "0"), ("--session-memory", "0")]:
            with Server(*flags) as server:
                self.assertEqual(server.request("POST", "/v1/sessions", {})[0], 429)

    def test_a_foreign_session_looks_like_none(self):
        keys = [{"Authorization": "Bearer " + key} for key in ("ka", "kb")]
        with Server("--api-key", "ka", "--api-key", "kb") as server:
            path = "/v1/sessions/" + server.request("POST", "/v1/sessions", {"messages": user("mine")}, keys[0])[2]["id"]
            none = "/v1/sessions/sess_" + "0" * 32
            for method, end, body in [("GET", "", None), ("DELETE", "", None), ("POST", "/generate", {}),
                                      ("POST", "/messages", {"messages": user("x")}), ("PUT", "/system", {"content": "x"}),
                                      ("POST", "/fork", {}), ("POST", "/forget", {"index": 0})]:
                foreign = server.request(method, path + end, body, keys[1])
                absent = server.request(method, none + end, body, keys[1])
                self.assertEqual((foreign[0], foreign[2]), (absent[0], absent[2]))
                self.assertEqual(foreign[0], 404)
            self.assertEqual(server.request("GET", "/v1/sessions", None, keys[1])[2]["data"], [])
            self.assertEqual(server.request("GET", path, None, keys[0])[2]["messages"][0]["content"], "mine")
            self.assertEqual(server.request("DELETE", "/v1/cache", None, keys[1])[2]["sessions"], 0)
            self.assertEqual(server.request("DELETE", "/v1/cache", None, keys[0])[2]["sessions"], 1)
            self.assertEqual(server.request("GET", path, None, keys[0])[0], 404)

    def test_the_openai_client_takes_a_session(self):
        import openai
        with Server() as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="x")
            made = client.post("/sessions", body={"messages": user(FACT), "sampling": GREEDY}, cast_to=object)
            answer = client.post(f"/sessions/{made['id']}/generate", body={},
                                 cast_to=openai.types.chat.ChatCompletion)
            self.assertEqual(answer.session, {"id": made["id"], "index": 1})
            stream = client.post(f"/sessions/{made['id']}/generate",
                                 body={"messages": user("What is my name?"), "stream": True},
                                 cast_to=openai.types.chat.ChatCompletionChunk, stream=True,
                                 stream_cls=openai.Stream[openai.types.chat.ChatCompletionChunk])
            text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
            self.assertIn("Mira", text)


if __name__ == "__main__":
    unittest.main()
