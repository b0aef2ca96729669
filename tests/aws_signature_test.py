#!/usr/bin/env python3
"""What Kvasir signs for S3 beside what botocore signs, for random requests.

    aws_signature_test.py [--requests 3000] [unittest arguments]
"""

import datetime
import json
import os
import random
import subprocess
import sys
import unittest
from unittest import mock

try:
    import botocore.auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
except ImportError:
    if os.environ.get("CI"):
        raise
    print("skipped: botocore is not installed (tests/requirements-all.txt)")
    sys.exit(77)

TOOL = f"{os.environ.get('KVASIR_TOOLS', 'build/release/tests')}/aws_signature_tool"
REQUESTS = 3000


class Signature(unittest.TestCase):
    SAFE = "abcXYZ019-._~"
    HARD = SAFE + " %+&=?#/:;,@!$'()*[]<>\"\\^`{|}äß€🙂"

    def setUp(self):
        self.tool = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.tool.stdout.close)
        self.addCleanup(self.tool.wait)
        self.addCleanup(self.tool.stdin.close)

    def text(self, draw, most, letters):
        return "".join(draw.choice(letters) for _ in range(draw.randint(1, most)))

    def request(self, draw):
        headers = {"host": draw.choice(["127.0.0.1:9000", "bucket.s3.eu-central-1.amazonaws.com", "[::1]:9000"])}
        if draw.random() < 0.3:
            headers["range"] = f"bytes=0-{draw.randrange(1000)}"
        if draw.random() < 0.3:
            headers["if-none-match"] = draw.choice(["*", '"6805f2cfc46c0f04559748bb039d69ae"', "  a   b  "])
        return {
            "method": draw.choice(["GET", "PUT", "HEAD", "DELETE"]),
            "path": "/" + "/".join(self.text(draw, 20, self.HARD.replace("/", "")) for _ in range(draw.randrange(5))),
            "query": {self.text(draw, 8, self.HARD): self.text(draw, 20, self.HARD) for _ in range(draw.randrange(5))},
            "headers": headers,
            "body": self.text(draw, 200, self.HARD) if draw.random() < 0.5 else "",
            "key_id": self.text(draw, 30, "ABC019"), "secret": self.text(draw, 90, self.SAFE + "/+"),
            "token": self.text(draw, 300, self.SAFE + "/+=") if draw.random() < 0.3 else "",
            "region": draw.choice(["us-east-1", "eu-central-1", "auto"]), "time": draw.randrange(2**31)}

    def by_kvasir(self, request):
        self.tool.stdin.write(json.dumps(request) + "\n")
        self.tool.stdin.flush()
        return json.loads(self.tool.stdout.readline())

    def by_botocore(self, request, target):
        # It takes a URL that is encoded, and signs the query by its parameters.
        signed = AWSRequest(method=request["method"], url="http://" + request["headers"]["host"] + target,
                            headers=request["headers"], data=request["body"].encode())
        credentials = Credentials(request["key_id"], request["secret"], request["token"] or None)
        time = datetime.datetime.fromtimestamp(request["time"], datetime.timezone.utc)
        with mock.patch("botocore.auth.get_current_datetime", lambda *_, **__: time):
            botocore.auth.S3SigV4Auth(credentials, "s3", request["region"]).add_auth(signed)
        return {name.lower(): value for name, value in signed.headers.items()}

    def test_random_requests_have_botocores_signature(self):
        for seed in range(REQUESTS):
            request = self.request(random.Random(seed))
            ours = self.by_kvasir(request)
            theirs = self.by_botocore(request, ours["target"])
            for name in ("authorization", "x-amz-date", "x-amz-content-sha256"):
                self.assertEqual(ours["headers"][name], theirs[name], (seed, request))
            self.assertEqual(ours["headers"].get("x-amz-security-token"), theirs.get("x-amz-security-token"))

    def test_a_target_is_what_was_meant(self):
        import urllib.parse
        for seed in range(REQUESTS // 10):
            request = self.request(random.Random(seed))
            path, _, query = self.by_kvasir(request)["target"].partition("?")
            self.assertEqual(urllib.parse.unquote(path), request["path"])
            self.assertEqual(dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), request["query"])
            self.assertEqual(query, "&".join(sorted(query.split("&"), key=lambda part: part.split("="))))


if __name__ == "__main__":
    if "--requests" in sys.argv:
        at = sys.argv.index("--requests")
        REQUESTS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
