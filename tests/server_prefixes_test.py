#!/usr/bin/env python3
"""GET /v1/cache/prefixes, and who gets the page at `/`."""

import json
import unittest

from server_harness import Server, WithServer

SYSTEM = "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."


def keyed(key):
    return {"Authorization": "Bearer " + key}


def ask(server, text, key=None, system=SYSTEM):
    headers = keyed(key) if key else None
    status, _, made = server.request("POST", "/v1/sessions", {"system": system}, headers)
    assert status == 201, made
    server.post(f"/v1/sessions/{made['id']}/generate",
                {"messages": [{"role": "user", "content": text}], "temperature": 0}, headers)
    return made["id"]


class PrefixesTest(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)

    def prefixes(self, key=None):
        status, _, answer = self.server.request("GET", "/v1/cache/prefixes", headers=keyed(key) if key else {})
        self.assertEqual(status, 200, answer)
        return answer

    def test_nothing_is_listed_before_something_was_read(self):
        self.assertEqual(self.prefixes(), {"object": "list", "has_more": False, "data": []})

    def test_runs_are_a_tree_with_hits_and_the_text_of_sessions(self):
        first = ask(self.server, "Where does Anna live?")
        ask(self.server, "Who are you?")
        data = self.prefixes()["data"]
        self.assertEqual([run["index"] for run in data], list(range(len(data))))
        top = data[0]
        self.assertEqual((top["parent"], top["begin"], top["hits"]), (None, 0, 1))
        self.assertIn("Anna lives in Oslo", top["text"])
        children = [run for run in data if run["parent"] == 0]
        self.assertEqual(len(children), 2)
        for run in children:
            self.assertEqual(run["begin"], top["tokens"])
            self.assertLessEqual(run["hits"], 1)  # a part of a block may be reused too
        blocks = self.server.get("/v1/cache")["cache"]["blocks"]
        self.assertEqual(sum(run["blocks"] for run in data), blocks["idle"] + blocks["pinned"])
        # A deleted session's text and blocks are gone, what the other one says stays.
        self.server.request("DELETE", "/v1/sessions/" + first)
        left = json.dumps(self.prefixes())
        self.assertNotIn("Where does", left)
        self.assertIn("Who are", left)

    def test_what_a_session_took_back_is_not_shown(self):
        secret = "The word is plinth. " * 6
        for method, end, body in (("POST", "/truncate", {"messages": 1}), ("PUT", "/messages/1", {"content": "Hi."}),
                                  ("POST", "/forget", {"index": 1}), ("PUT", "/messages/1", {"content": "Hi.", "keep_later": True}),
                                  ("POST", "/forget", {"index": 1, "begin": 0, "end": 120})):
            path = "/v1/sessions/" + ask(self.server, secret, system=f"You are brief. {end} " + SYSTEM)
            shown = json.dumps(self.prefixes())
            self.assertIn("plinth", shown)
            self.assertEqual(self.server.request(method, path + end, body)[0], 200)
            data = self.prefixes()["data"]
            self.assertNotIn("plinth", json.dumps(data), body)
            still = "".join(run["text"] for run in data if run["session"] == path[-37:])
            self.assertIn("The code of the green safe", still)

    def test_what_another_session_says_is_shown(self):
        secret = "The word is plinth. " * 6
        path = "/v1/sessions/" + ask(self.server, secret)
        fork = self.server.request("POST", path + "/fork", {})[2]["id"]
        self.server.request("POST", path + "/truncate", {"messages": 1})
        shown = [run for run in self.prefixes()["data"] if run["text"] and "plinth" in run["text"]]
        self.assertGreater(len(shown), 0)
        self.assertEqual({run["session"] for run in shown}, {fork})

    def test_prompts_outside_of_sessions_have_no_text(self):
        self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "The word is plinth. " * 9}],
                                                  "max_tokens": 4})
        answer = self.prefixes()
        self.assertGreater(len(answer["data"]), 0)
        self.assertTrue(all(run["text"] is None and run["session"] is None for run in answer["data"]))
        self.assertNotIn("plinth", json.dumps(answer))

    def test_many_prompts_are_cut_and_said_to_be(self):
        for i in range(0, 600, 60):
            self.server.post("/v1/completions", {"prompt": [[5 + i + k, *range(40, 60)] for k in range(60)], "max_tokens": 0})
        answer = self.prefixes()
        self.assertTrue(answer["has_more"])
        self.assertEqual(len(answer["data"]), 512)


class TenantsTest(WithServer):
    flags = ("--api-key", "alpha", "--api-key", "beta", "--admin-key", "root")

    def test_everyone_sees_the_own_prefixes_alone(self):
        ask(self.server, "Where does Anna live?", "alpha")
        own = self.server.request("GET", "/v1/cache/prefixes", headers=keyed("alpha"))[2]
        other = self.server.request("GET", "/v1/cache/prefixes", headers=keyed("beta"))[2]
        self.assertGreater(len(own["data"]), 0)
        self.assertEqual(other["data"], [])
        # The same prompt of another tenant is another prefix, and has its own hits.
        ask(self.server, "Where does Anna live?", "beta")
        own = self.server.request("GET", "/v1/cache/prefixes", headers=keyed("alpha"))[2]
        self.assertEqual(own["data"][0]["hits"], 0)

    def test_a_key_is_needed_and_the_admins_is_no_tenants(self):
        self.assertEqual(self.server.request("GET", "/v1/cache/prefixes")[0], 401)
        self.assertEqual(self.server.request("GET", "/v1/cache/prefixes", headers=keyed("root"))[0], 403)

    def test_the_page_needs_no_key_and_the_list_does(self):
        status, headers, _ = self.server.request("GET", "/", headers={"Accept": "text/html,*/*"})
        self.assertEqual((status, headers["content-type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'self'", headers["content-security-policy"])
        for path in ("/page.css", "/page.js", "/page.svg"):
            status, headers, _ = self.server.request("GET", path)
            self.assertEqual(status, 200)
            self.assertIn("default-src 'self'", headers["content-security-policy"])
        self.assertEqual(self.server.request("GET", "/")[0], 401)
        self.assertEqual(self.server.request("GET", "/", headers=keyed("alpha"))[2]["name"], "kvasir")


class NoPageTest(WithServer):
    flags = ("--no-page", "--api-key", "alpha")

    def test_browsers_get_the_list_too(self):
        html = {"Accept": "text/html"}
        self.assertEqual(self.server.request("GET", "/", headers=html)[0], 401)
        self.assertEqual(self.server.request("GET", "/", headers={**html, **keyed("alpha")})[2]["name"], "kvasir")
        self.assertEqual(self.server.request("GET", "/page.js")[0], 404)


if __name__ == "__main__":
    unittest.main()
