#!/usr/bin/env python3
"""A real S3 store for a test: moto's, which checks each signature. It keeps everything in memory.

    s3_server.py [PORT [CERTIFICATE KEY]]    serves until its input ends, with TLS where it has a certificate;
                    reads and prints lines of JSON, the first of which has port, key_id and secret
"""

import datetime
import json
import os
import subprocess
import sys
import threading

ACCOUNT, BUCKET, REGION = "123456789012", "kvasir-cache", "eu-central-1"
SKEWED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is too \
large.</Message></Error>"""


def is_installed():
    try:
        import moto  # noqa: F401
        import flask_cors  # noqa: F401
    except ImportError:
        return False
    return True


def require_moto():
    """Ends a test without moto: a failure in CI, else a skip."""
    if is_installed():
        return
    if os.environ.get("CI"):
        raise SystemExit("moto is not installed (tests/requirements-all.txt)")
    print("skipped: moto is not installed (tests/requirements-all.txt)")
    sys.exit(77)


class S3:
    """It runs in a separate process, with TLS where it gets files of a certificate and its key; ends with stop()."""

    def __init__(self, *tls):
        self.port, self.tls = 0, tls
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, __file__, str(self.port), *self.tls], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        told = json.loads(self.process.stdout.readline())
        self.port, self.key_id, self.secret = told["port"], told["key_id"], told["secret"]
        scheme = "https" if self.tls else "http"
        self.url = f"s3://{BUCKET}/some/prefix?region={REGION}&endpoint={scheme}://127.0.0.1:{self.port}"
        self.environment = {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret}

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def clear(self):
        """Makes it as it was after the start: empty, with a right clock. One that was stopped runs again."""
        if self.process.poll() is not None:
            self.stop()
            self.start()
        self.do(do="clear")

    def do(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def names(self):
        return sorted(self.do(do="names"))

    def records(self):
        """Names of blocks; the objects of owners have shorter ones."""
        return [name for name in self.names() if len(name) == len("some/prefix/") + 139]


def serve(port, *tls):
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
    import logging
    from moto.iam.models import iam_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    WSGIRequestHandler.disable_nagle_algorithm = True  # with TLS an answer waited 40 ms for the client's ACK
    iam, s3 = iam_backends[ACCOUNT]["aws"], s3_backends[ACCOUNT]["aws"]
    iam.create_user(REGION, "kvasir")
    iam.put_user_policy("kvasir", "all", json.dumps({
        "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}))
    key = iam.create_access_key("kvasir")
    s3.create_bucket(BUCKET, REGION)
    # moto keeps no clock: what AWS answers to one that is off by 15 minutes.
    state = {"ahead_s": 0, "requests": 0}
    application = DomainDispatcherApplication(create_backend_app)

    def checked(environ, start_response):
        state["requests"] += 1
        now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=state["ahead_s"])
        told = datetime.datetime.strptime(environ.get("HTTP_X_AMZ_DATE", "19700101T000000Z"), "%Y%m%dT%H%M%SZ")
        if abs((now.replace(tzinfo=None) - told).total_seconds()) > 900:
            start_response("403 Forbidden", [("Content-Type", "application/xml"),
                                             ("Content-Length", str(len(SKEWED)))])
            return [SKEWED]
        return application(environ, start_response)

    server = make_server("127.0.0.1", port, checked, threaded=True, ssl_context=tls or None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_port, "key_id": key.access_key_id, "secret": key.secret_access_key}),
          flush=True)
    for line in sys.stdin:
        what, answer = json.loads(line), None
        keys = s3.buckets[BUCKET].keys if BUCKET in s3.buckets else {}
        if what["do"] == "names":
            answer = list(keys)
        elif what["do"] == "requests":
            answer = state["requests"]
        elif what["do"] == "clear":
            keys.clear()
            state["ahead_s"] = 0
        elif what["do"] == "ahead":  # a clock
            state["ahead_s"] = what["s"]
        elif what["do"] == "change":  # a value: cut, or another one's
            value = s3.get_object(BUCKET, what["of"]).value
            s3.put_object(BUCKET, what["name"], value[:what["bytes"]] + b"x" * what.get("more", 0))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    given_port, *given_tls = sys.argv[1:] or ["0"]
    serve(int(given_port), *given_tls)
