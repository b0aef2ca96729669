"""A hub of models on this machine, as Hugging Face's: the list of files, and files that it redirects to another host.

Files of at least LARGE bytes are "LFS": the hub answers with a redirect to `store`, a second server.
"""
import collections
import hashlib
import http.server
import json
import pathlib
import re
import ssl
import subprocess
import threading
import urllib.parse

LARGE = 4096
COMMIT = hashlib.sha1(b"first").hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag_of(data):
    """The name of a file's blob, as the hub gives it."""
    return hashlib.sha256(data).hexdigest() if len(data) >= LARGE else git_sha1(data)


def make_certificate(folder):
    """A certificate for localhost and 127.0.0.1 that is its own authority: (file, key)."""
    certificate, key = folder / "hub.pem", folder / "hub.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", certificate, "-keyout", key],
                   check=True, capture_output=True)
    return certificate, key


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        self.server.hub.requests.append((self.server.kind, self.command, self.path, dict(self.headers)))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        try:
            self.server.hub.answer(self, path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def head(self, status, body_bytes, headers):
        self.send_response(status)
        self.send_header("Content-Length", str(body_bytes))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, status, body=b"", **headers):
        self.head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that leave are what the tests are about."""


class Hub:
    """repos: {"owner/name": {"file": bytes}}. Fields may be changed between requests.

    faults: {file: [fault, ...]}; each request for the file's bytes takes the first one:
      500, 429, ...            this status
      "cut N"                  the first N bytes of what is asked for, then the connection ends
      "hold N"                 the first N bytes; the rest when `release` is set
      "wrong"                  other bytes of the same length
      "short"                  a whole response without the last byte
      "long"                   one byte more
      "no range"               the whole file, whatever is asked for
      "range N"                206 from N on, whatever is asked for
      "etag"                   another ETag
      "to URL"                 a redirect there
    """

    def __init__(self, certificate=None):
        self.repos, self.faults, self.requests = {}, collections.defaultdict(list), []
        self.refuse = None  # (status, X-Error-Code) of every list
        self.extra_siblings = []
        self.release = threading.Event()
        self.servers = {}
        for kind in ("hub", "store"):
            server = Server(("127.0.0.1", 0), Handler)
            server.hub, server.kind = self, kind
            if certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            self.servers[kind] = server
            threading.Thread(target=server.serve_forever, daemon=True).start()
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://localhost:{self.servers['hub'].server_port}"
        self.store_url = f"{scheme}://127.0.0.1:{self.servers['store'].server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release.set()
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def add(self, repo, files):
        """files: {"name": bytes or path}"""
        self.repos[repo] = {name: data if isinstance(data, bytes) else pathlib.Path(data).read_bytes()
                            for name, data in files.items()}

    def asked(self, kind, pattern):
        """The headers of the GETs whose path matches."""
        return [headers for where, command, path, headers in self.requests
                if where == kind and command == "GET" and re.search(pattern, path)]

    def answer(self, request, path):
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            return self.answer_list(request, *found.groups())
        found = re.fullmatch(r"(?:/store)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not found or found[1] not in self.repos or found[3] not in self.repos[found[1]]:
            return request.send(404, X_Error_Code="EntryNotFound")
        return self.answer_file(request, path, found[3], self.repos[found[1]][found[3]])

    def answer_list(self, request, repo, what, revision):
        if self.refuse:
            return request.send(self.refuse[0], b"<html>", X_Error_Code=self.refuse[1])
        if repo not in self.repos or revision not in ("main", "v1", COMMIT):
            return request.send(404, X_Error_Code="RepoNotFound" if repo not in self.repos else "RevisionNotFound")
        files = self.repos[repo]
        lfs = {name: {"sha256": etag_of(data), "oid": etag_of(data), "size": len(data), "pointerSize": 130}
               for name, data in files.items() if len(data) >= LARGE}
        if what == "tree":
            body = [{"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
                    | ({"lfs": lfs[name]} if name in lfs else {}) for name, data in files.items()]
        else:
            siblings = [{"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
                        | ({"lfs": lfs[name]} if name in lfs else {}) for name, data in files.items()]
            body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings + self.extra_siblings}
        request.send(200, json.dumps(body).encode(), Content_Type="application/json")

    def answer_file(self, request, path, name, data):
        etag = etag_of(data)
        fault = self.faults[name].pop(0) if self.faults[name] and request.command == "GET" else ""
        if fault == "etag":
            etag = "0" * len(etag)
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        if isinstance(fault, int):
            return request.send(fault, b"<html>an error</html>")
        if fault.startswith("to "):
            return request.send(302, Location=fault[3:], **headers)
        if len(data) >= LARGE and request.server.kind == "hub":
            if fault and fault != "etag":
                self.faults[name].insert(0, fault)  # for the store
            where = urllib.parse.urlsplit(request.path).path  # a proxy is asked for the whole address
            return request.send(302, Location=self.store_url + "/store" + where, X_Linked_Etag=f'"{etag}"',
                                X_Linked_Size=len(data), X_Repo_Commit=COMMIT)
        if request.server.kind == "store":
            headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
        self.send_bytes(request, data, fault, headers)

    def send_bytes(self, request, data, fault, headers):
        begin = 0
        if found := re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", "")):
            begin = int(found[1])
        if fault == "no range":
            begin = 0
        if fault.startswith("range "):
            begin = int(fault[6:])
        if begin >= len(data) > 0:
            return request.send(416, Content_Range=f"bytes */{len(data)}")
        status = 200
        if begin > 0:
            status, headers["Content_Range"] = 206, f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        body = {"wrong": bytes(b ^ 1 for b in body), "short": body[:-1], "long": body + b"!"}.get(fault, body)
        if not fault.startswith(("cut ", "hold ")):
            return request.send(status, body, **headers)
        first = int(fault[5:] if fault.startswith("hold") else fault[4:])
        request.close_connection = True
        request.head(status, len(body), headers)
        request.wfile.write(body[:first])
        request.wfile.flush()
        if fault.startswith("hold"):
            self.release.wait(60)
            request.wfile.write(body[first:])
