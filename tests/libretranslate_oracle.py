#!/usr/bin/env python3
"""Clients of LibreTranslate as they are installed from PyPI and npm, against POST /translate and GET /languages.

    KVASIR_BINARY=build/release/kvasir libretranslate_oracle.py [unittest arguments]

libretranslatepy, and npm's `translate` and `libretranslate`; the first run installs them in build/libretranslate.
Without the registry, or ../shared, the test is skipped (77); without node only npm's.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import urllib.error

from server_harness import ROOT, Server

HOME = pathlib.Path(os.environ.get("KVASIR_LIBRETRANSLATE", ROOT / "build/libretranslate"))
MODEL = ROOT.parent / "shared/goldens/m2m100"
PYPI = "libretranslatepy==2.1.4"
NPM = ["translate@3.1.0", "libretranslate@1.0.1"]
TEXT = "The dog is happy."
ASK_TRANSLATE = """
import translate from 'translate';
translate.engine = 'libre';
translate.url = process.argv[2] + '/translate';
translate.key = process.argv[3];
console.log(JSON.stringify([await translate(process.argv[4], { from: 'en', to: 'fr' }),
                            await translate('What is your name?', { from: 'en', to: 'de' })]));
"""
ASK_LIBRETRANSLATE = """
const { translate } = require('libretranslate');
translate({ query: process.argv[3], source: 'en', target: 'fr', apiurl: process.argv[2] })
  .then((text) => console.log(JSON.stringify(text)));
"""


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def install():
    if not MODEL.is_dir():
        skip(f"needs {MODEL}")
    packages = HOME / "python"
    if not (packages / "libretranslatepy").is_dir():
        HOME.mkdir(parents=True, exist_ok=True)
        if subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-input", "--no-deps", "--target", packages,
                           PYPI]).returncode:
            skip(f"pip could not install {PYPI}")
    sys.path.insert(0, str(packages))
    if shutil.which("npm") and not (HOME / "node_modules/libretranslate").is_dir():
        (HOME / "package.json").write_text('{"private": true}')
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *NPM], cwd=HOME, check=False)


class Clients(unittest.TestCase):
    key = None

    @classmethod
    def setUpClass(cls):
        flags = ("--api-key", cls.key) if cls.key else ()
        cls.server = Server("--model", MODEL, *flags)
        cls.addClassCleanup(cls.server.stop)
        headers = {"x-api-key": cls.key} if cls.key else {}
        cls.answer = lambda _, q, target: cls.server.post("/translate", {"q": q, "source": "en", "target": target},
                                                          headers)["translatedText"]

    def node(self, name, program, *arguments):
        if not (HOME / "node_modules/libretranslate").is_dir():
            self.skipTest("needs node and npm's registry")
        (HOME / name).write_text(program)
        result = subprocess.run(["node", name, *arguments], cwd=HOME, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_libretranslatepy(self):
        from libretranslatepy import LibreTranslateAPI
        client = LibreTranslateAPI(self.server.url, self.key)
        self.assertEqual(client.translate(TEXT, "en", "fr"), self.answer(TEXT, "fr"))
        self.assertEqual(client.languages(), self.server.get("/languages"))
        with self.assertRaises(urllib.error.HTTPError) as raised:
            client.translate(TEXT, "auto", "fr")
        self.assertEqual(raised.exception.code, 400)
        self.assertIn("not detected", json.loads(raised.exception.read())["error"])

    def test_translate_of_npm(self):
        self.assertEqual(self.node("translate.mjs", ASK_TRANSLATE, self.server.url, self.key or "", TEXT),
                         [self.answer(TEXT, "fr"), self.answer("What is your name?", "de")])


class ClientsWithoutAKey(Clients):
    def test_libretranslate_of_npm(self):
        self.assertEqual(self.node("libretranslate.cjs", ASK_LIBRETRANSLATE, self.server.url, TEXT),
                         self.answer(TEXT, "fr"))


class ClientsWithAKey(Clients):
    key = "a-secret"

    def test_another_key_is_refused(self):
        from libretranslatepy import LibreTranslateAPI
        for key in (None, "another"):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                LibreTranslateAPI(self.server.url, key).translate(TEXT, "en", "fr")
            self.assertEqual(raised.exception.code, 401)
            self.assertIn("key", json.loads(raised.exception.read())["error"])


def load_tests(loader, _, __):
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (ClientsWithoutAKey, ClientsWithAKey)))


if __name__ == "__main__":
    install()
    unittest.main()
