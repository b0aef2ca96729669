#!/usr/bin/env python3
"""What a hub, the network or a stranger may do to kvasir pull: nothing is half installed, no other host gets the token.

    hub_faults_test.py [KVASIR_BINARY] [unittest arguments]
"""
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import cli_support
from hub_server import COMMIT, Hub, etag_of
from hub_support import GGUF, RUN, HubTest
from needs import needs_programs


# A libcurl that has one version, and takes every option but one.
LIBCURL = """
struct version { int age; const char* text; unsigned number; char more[256]; } version = {10, TEXT, NUMBER, ""};
int curl_global_init(long flags) { return 0; }
void* curl_version_info(int age) { return &version; }
void* curl_easy_init(void) { return &version; }
int curl_easy_setopt(void* curl, int option, ...) { return option == REFUSED ? 48 : 0; }
int curl_easy_perform(void* curl) { return 1; }
void curl_easy_cleanup(void* curl) {}
const char* curl_easy_strerror(int code) { return "an unknown option"; }
void* curl_slist_append(void* list, const char* text) { return &version; }
void curl_slist_free_all(void* list) {}
"""
CAINFO, PROTOCOLS_STR = 10065, 10318


@needs_programs("cc")
class Library(HubTest):
    def fails_with(self, version, refused, *arguments, says, **environment):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "curl.c")
            source.write_text(LIBCURL)
            number = "0x" + "".join(f"{int(part):02x}" for part in version.split("."))
            subprocess.run(["cc", "-shared", "-fPIC", f'-DTEXT="{version}"', f"-DNUMBER={number}",
                            f"-DREFUSED={refused}", source, "-o", f"{folder}/libcurl.so.4"], check=True)
            self.fails(*arguments, says=says, LD_LIBRARY_PATH=folder, **environment)

    def pull_with(self, version, refused, says):
        self.fails_with(version, refused, "pull", "o/quants", says=says)

    def test_one_that_cannot_do_what_is_needed_is_not_used(self):
        self.pull_with("7.84.0", 0, says="libcurl is 7.84.0; 7.85 or newer is needed")
        for option in (CAINFO, PROTOCOLS_STR):
            self.pull_with("7.88.1", option, says=f"libcurl 7.88.1 refuses its option {option}: an unknown option")

    def test_a_store_of_s3_needs_several_transfers_at_once_which_a_pull_does_not(self):
        with tempfile.NamedTemporaryFile() as secret:
            secret.write(bytes(range(32)))
            secret.flush()
            self.fails_with("7.88.1", 0, "serve", "--port", "0", "--model", str(cli_support.ROOT / "models/kvasir-demo"),
                            "--remote", "s3://bucket?endpoint=http://127.0.0.1:1", "--fleet-secret", secret.name,
                            says="an S3 store needs libcurl (libcurl.so.4) of 7.85 or newer: install it",
                            AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="key")


class Token(HubTest):
    def test_only_the_hub_gets_the_token(self):
        self.done("pull", "o/quants")
        for headers in self.hub.asked("hub", ""):
            self.assertEqual(headers["Authorization"], "Bearer hf_secret")
        from_store = self.hub.asked("store", "m-Q4_K_M")
        self.assertEqual(len(from_store), 1)
        self.assertNotIn("Authorization", from_store[0])

    def test_another_port_of_the_same_host_is_another_host(self):
        self.hub.store_url = self.hub.store_url.replace("127.0.0.1", "localhost")
        self.done("pull", "o/quants")
        self.assertNotIn("Authorization", self.hub.asked("store", "m-Q4_K_M")[0])

    def test_a_token_file_and_no_token(self):
        del self.environment["HF_TOKEN"]
        self.done("pull", "o/quants")
        self.assertNotIn("Authorization", self.hub.asked("hub", "")[-1])
        (self.home / "token").write_text("hf_file\n")
        self.done("pull", "o/quants")
        self.assertEqual(self.hub.asked("hub", "")[-1]["Authorization"], "Bearer hf_file")

    def test_no_proxy_reads_the_token(self):
        with Hub() as hub, Hub() as proxy:
            hub.add("o/m", {"m.gguf": GGUF})
            self.done("pull", "o/m", HF_ENDPOINT=hub.url, http_proxy=proxy.url, all_proxy=proxy.url)
            self.assertEqual(hub.asked("hub", "/api/")[0]["Authorization"], "Bearer hf_secret")
            self.assertEqual(proxy.requests, [])

    def test_no_redirect_leaves_tls(self):
        with Hub() as plain:
            plain.add("o/quants", {"m-Q4_K_M.gguf": GGUF})
            path = f"/o/quants/resolve/{COMMIT}/m-Q4_K_M.gguf"
            self.hub.faults["m-Q4_K_M.gguf"] = [f"to {plain.store_url}/store{path}"] * 5
            self.fails("pull", "o/quants", says="m-Q4_K_M.gguf: ")
            self.assertEqual(plain.requests, [])
        self.nothing_installed("o/quants")

    def test_an_unknown_certificate_is_refused(self):
        self.environment["SSL_CERT_FILE"] = "/etc/ssl/certs/ca-certificates.crt"
        self.fails("pull", "o/quants", says="certificate")
        self.assertEqual(self.hub.requests, [])

    def test_refusals_say_what_to_do(self):
        for refuse, status, says in (((401, "RepoNotFound"), 1, "the hub refuses the token (401)"),
                                     ((401, "GatedRepo"), 1, f"accept its conditions at {self.hub.url}/o/demo"),
                                     ((403, "GatedRepo"), 1, "is gated (the hub answers 403)"),
                                     ((418, ""), 1, "the hub answers 418")):
            self.hub.refuse = refuse
            self.fails("pull", "o/demo", status=status, says=says)
        self.hub.refuse = (401, "RepoNotFound")
        del self.environment["HF_TOKEN"]
        self.fails("pull", "o/demo", says="for a private one set HF_TOKEN")
        self.hub.refuse = None
        self.fails("pull", "o/none", status=2, says="o/none: the hub has no such model or revision (404)")
        self.fails("pull", "o/demo@none", status=2, says="o/demo@none: the hub has no such")
        self.fails("pull", "o/demo", says="HF_HUB_OFFLINE forbids the network", HF_HUB_OFFLINE="1")
        self.fails("pull", "o/demo", status=2, says="HF_ENDPOINT: 'hub'", HF_ENDPOINT="hub")
        self.assertFalse(self.cache.exists())


class Faults(HubTest):
    NAME = "m-Q4_K_M.gguf"

    def pull_despite(self, *faults):
        self.hub.faults[self.NAME] = list(faults)
        self.done("pull", "o/quants")
        self.assertEqual((self.snapshot("o/quants") / self.NAME).read_bytes(), GGUF)
        self.assertEqual(self.hub.faults[self.NAME], [])
        return [headers.get("Range") for headers in self.hub.asked("hub", self.NAME)]

    def test_a_cut_download_goes_on_where_it_ended(self):
        self.assertEqual(self.pull_despite("cut 1000", "cut 500", "cut 0"),
                         [None, "bytes=1000-", "bytes=1500-", "bytes=1500-"])

    def test_an_error_for_now_is_tried_again(self):
        self.assertEqual(self.pull_despite(500, "cut 700", 429), [None, None, "bytes=700-", "bytes=700-"])

    def test_a_server_without_ranges_begins_again(self):
        self.assertEqual(self.pull_despite("cut 700", "no range"), [None, "bytes=700-"])

    def test_a_hub_that_begins_again_for_ever_is_given_up(self):
        self.hub.faults[self.NAME] = ["cut 700", 416] * 9
        self.fails("pull", "o/quants", says="pull again")
        self.assertLess(len(self.hub.asked("store", self.NAME)), 8)  # of 18 that it would have cut
        self.hub.faults[self.NAME] = ["cut 0", 416]
        self.done("pull", "o/quants")

    def test_an_error_that_stays_is_said(self):
        self.hub.faults[self.NAME] = [503] * 5
        self.fails("pull", "o/quants", says=["the hub answers 503", "pull again later"])
        self.nothing_installed("o/quants")
        self.done("pull", "o/quants")

    def test_without_a_network_it_says_at_once_that_it_tries_again(self):
        silent = socket.socket()  # it has the port, and does not listen
        self.addCleanup(silent.close)
        silent.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % silent.getsockname()[1]
        self.environment["HF_ENDPOINT"] = url
        process = self.start("pull", "o/quants")
        begin = time.monotonic()
        first = process.stderr.readline()
        self.assertLess(time.monotonic() - begin, 10)
        self.assertIsNone(process.poll(), "it still tries")
        self.assertRegex(first, f"^kvasir: warning: {url}: .+; trying again, 4 times at most\n$")
        out, rest = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out, rest.count("\n")), (1, "", 1), rest)
        self.assertIn("pull again to go on", rest)

    def test_nothing_of_other_bytes_is_installed(self):
        for fault, says in (("wrong", "checksum mismatch"), ("short", f"sent {len(GGUF) - 1} of the {len(GGUF)} bytes"),
                            ("long", f"sends more than the {len(GGUF)} bytes"),
                            ("etag", "has another file now than it listed")):
            self.hub.faults[self.NAME] = [fault]
            self.fails("pull", "o/quants", says=[self.NAME + ": ", says, "pull again"])
            self.nothing_installed("o/quants")
            self.fails("run", *RUN, "--model", "o/quants", status=2, says="'kvasir pull o/quants' fetches it")
        self.hub.faults[self.NAME] = ["cut 700", "range 300"]
        self.fails("pull", "o/quants", says="was asked for bytes from 700 on, but sent bytes from another offset")
        self.done("pull", "o/quants")

    def test_a_small_file_has_its_git_hash_checked(self):
        self.hub.faults["config.json"] = ["wrong"]
        self.fails("pull", "o/demo", says="config.json: checksum mismatch")
        folder = self.cache / "models--o--demo"
        self.assertFalse((folder / "refs").exists() or (folder / "snapshots").exists())

    def test_a_killed_pull_leaves_a_beginning_that_the_next_one_uses(self):
        self.hub.faults[self.NAME] = ["hold 3000"]
        process = self.start("pull", "o/quants")
        draft = self.cache / f"models--o--quants/blobs/{etag_of(GGUF)}.incomplete"
        self.wait_for(lambda: draft.exists() and draft.stat().st_size == 3000)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        self.nothing_installed("o/quants")
        self.done("pull", "o/quants")
        self.assertEqual(self.hub.asked("store", self.NAME)[-1]["Range"], "bytes=3000-")
        self.assertFalse(draft.exists())

    def test_a_damaged_beginning_is_not_kept(self):
        blobs = self.cache / "models--o--quants/blobs"
        blobs.mkdir(parents=True)
        (blobs / f"{etag_of(GGUF)}.incomplete").write_bytes(b"x" * 10)
        self.fails("pull", "o/quants", says="checksum mismatch")
        self.done("pull", "o/quants")

    def test_a_truncated_blob_is_replaced(self):
        self.done("pull", "o/quants")
        blob = self.cache / f"models--o--quants/blobs/{etag_of(GGUF)}"
        blob.write_bytes(GGUF[:100])
        self.done("pull", "o/quants")
        self.assertEqual(blob.read_bytes(), GGUF)

    def test_ctrl_c(self):
        self.hub.faults[self.NAME] = ["hold 3000"]
        process = self.start("pull", "o/quants")
        self.wait_for(lambda: self.hub.asked("store", self.NAME))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.nothing_installed("o/quants")

    def test_names_that_lead_out_are_refused(self):
        for name in ("../../../x", "/etc/x", "a/../../x", "a\\b", "a\nb", "a//b"):
            self.hub.extra_siblings = [{"rfilename": name, "size": 3, "blobId": "0" * 40}]
            self.fails("pull", "o/quants", status=2, says=["file name '", "nothing is fetched"])
        self.assertEqual(list(self.home.rglob("*")), [])
        self.hub.extra_siblings = [{"rfilename": "x.json"}]
        self.fails("pull", "o/quants", status=2, says="no valid size of x.json")

    def test_a_disk_without_room_is_known_before(self):
        self.hub.extra_siblings = [{"rfilename": "big.gguf", "size": 1 << 49, "lfs": {"sha256": "0" * 64}}]
        self.fails("pull", "o/quants:big.gguf", says=[f"needs {1 << 49} more bytes", "HF_HUB_CACHE"])
        self.nothing_installed("o/quants")


if __name__ == "__main__":
    cli_support.main()
