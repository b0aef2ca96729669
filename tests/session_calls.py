"""What tests say to /v1/sessions."""

from server_harness import WithServer, post_bytes, user

FACT = "My name is Mira. I live in Oslo. My cat is called Pixel."
GREEDY = {"temperature": 0, "max_tokens": 24}


class Calls(WithServer):
    """What the tests say to a server."""

    def call(self, method, path, body=None, status=200):
        got, _, answer = self.server.request(method, path, body)
        self.assertEqual(got, status, (method, path, answer))
        return answer

    def make(self, **body):
        made = self.call("POST", "/v1/sessions", {"sampling": GREEDY} | body, 201)
        self.assertRegex(made["id"], r"^sess_[0-9a-f]{32}$")
        return "/v1/sessions/" + made["id"]

    def generate(self, path, text=None, **body):
        if text is not None:
            body["messages"] = user(text)
        return self.call("POST", path + "/generate", body)

    def show(self, path, ids=False):
        return self.call("GET", path + ("?ids=true" if ids else ""))

    def state(self, path):
        """All that a call may change."""
        shown = self.show(path, ids=True)
        return {key: shown[key] for key in ("messages", "ids", "tokens")}

    def texts(self, path):
        return [m["content"] for m in self.show(path)["messages"]]

    def bad(self, method, path, body, param=None, status=400, code=None):
        answer = self.call(method, path, body, status)
        self.assertEqual(set(answer), {"error"})
        lengths = {"n_prompt_tokens", "n_prompt_tokens_is_least", "n_ctx"}
        self.assertEqual(set(answer["error"]) - lengths, {"message", "type", "param", "code"})
        if param:
            self.assertEqual(answer["error"]["param"], param, answer)
        if code:
            self.assertEqual(answer["error"]["code"], code, answer)
        return answer["error"]["message"]

    def fork(self, path, **body):
        return "/v1/sessions/" + self.call("POST", path + "/fork", body, 201)["id"]

    def assert_no_pins(self):
        self.server.until("no pinned block", lambda: self.server.metric('kvasir_blocks{state="pinned"}') == 0)

    def stream(self, path, **body):
        """A connection whose generate has begun to stream."""
        s = self.server.open()
        s.sendall(post_bytes(path + "/generate", {"stream": True, "ignore_eos": True, "max_tokens": 300} | body))
        received = b""
        while b'"content":"' not in received.replace(b'"content":""', b"", 1):
            received += s.recv(4096)
        return s
