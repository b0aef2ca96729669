#!/usr/bin/env python3
"""How the page shows markdown: a table of cases, random text, text that wants to be more than text, and its cost."""

import random

from page_browser import BrowserTest, FakeServer, expect, main

# Markdown, and the tree that comes of it: the name of an element and what is in it; a text as it is.
CASES = [
    ("", []),
    ("plain text", [["p", "plain text"]]),
    ("one\ntwo", [["p", "one", ["br"], "two"]]),
    ("one\n\ntwo", [["p", "one"], ["p", "two"]]),
    ("# Big\n### Small ##\n#no", [["h3", "Big"], ["h4", "Small"], ["p", "#no"]]),
    ("Title\n=====\nLess\n---", [["h3", "Title"], ["h3", "Less"]]),
    ("*a* **b** ***c*** _d_ __e__ ~~f~~", [["p", ["em", "a"], " ", ["strong", "b"], " ", ["em", ["strong", "c"]], " ",
                                            ["em", "d"], " ", ["strong", "e"], " ", ["del", "f"]]]),
    ("a_b_c 2 * 3 * 4 **", [["p", "a_b_c 2 * 3 * 4 **"]]),
    ("*a **b** c* **d *e* f**", [["p", ["em", "a ", ["strong", "b"], " c"], " ", ["strong", "d ", ["em", "e"], " f"]]]),
    ("`a` ``b ` c`` ` d", [["p", ["code", "a"], " ", ["code", "b ` c"], " ` d"]]),
    (r"\*a\* \` &lt;b&gt; &amp; &#65; &nope;", [["p", "*a* ` <b> & A &nope;"]]),
    ("- a\n- b\n  - c\n- d", [["ul", ["li", ["p", "a"]], ["li", ["p", "b"], ["ul", ["li", ["p", "c"]]]],
                               ["li", ["p", "d"]]]]),
    ("1. a\n\n2. b\n\n   more\n", [["ol", ["li", ["p", "a"]], ["li", ["p", "b"], ["p", "more"]]]]),
    ("* a\n+ b", [["ul", ["li", ["p", "a"]]], ["ul", ["li", ["p", "b"]]]]),
    ("- a\n\n  ```py\n  x = 1\n  ```\n- b", [["ul", ["li", ["p", "a"], ["pre", "x = 1"]], ["li", ["p", "b"]]]]),
    ("In 1986. was", [["p", "In 1986. was"]]),
    ("> a\n> > b\nc", [["blockquote", ["p", "a"], ["blockquote", ["p", "b"]]], ["p", "c"]]),
    ("---\n***\n- - -", [["hr"], ["hr"], ["hr"]]),
    ("```js\nlet a = '*b*';\n\n<b>\n```\nend", [["pre", "let a = '*b*';\n\n<b>"], ["p", "end"]]),
    ("~~~\nopen", [["pre", "open"]]),
    ("    four spaces stay text", [["p", "four spaces stay text"]]),
    ("| a | b |\n|---|:-:|\n| 1 | *2* |\n| x \\| y |\n\nend",
     [["table", ["tr", ["th", "a"], ["th", "b"]], ["tr", ["td", "1"], ["td", ["em", "2"]]],
       ["tr", ["td", "x | y"], ["td"]]], ["p", "end"]]),
    ("a | b\nno table", [["p", "a | b", ["br"], "no table"]]),
    ("[a *b*](https://x.y/z) <https://q.r> https://s.t/u_(v). (https://w.x)",
     [["p", ["a", "a ", ["em", "b"]], " ", ["a", "https://q.r"], " ", ["a", "https://s.t/u_(v)"], ". (",
       ["a", "https://w.x"], ")"]]),
    ("[![alt](https://x.y/i.png)](https://x.y) ![only](https://x.y/i.png)", [["p", ["a", "alt"], " ", ["a", "only"]]]),
    ("[a](b.html) [c] [d](https://x.y z", [["p", "[a](b.html) [c] [d](", ["a", "https://x.y"], " z"]]),
    ("<b>bold</b> <img src=x onerror=alert(1)>", [["p", "<b>bold</b> <img src=x onerror=alert(1)>"]]),
    ("[a](javascript:alert(1)) ![b](data:image/png;base64,AA) <javascript:alert(1)>",
     [["p", "[a](javascript:alert(1)) ![b](data:image/png;base64,AA) <javascript:alert(1)>"]]),
    ("[a](JaVaScRiPt:x) [b](&#106;avascript:x) [c](java\\script:x) [d](//x.y) [e](vbscript:x)",
     [["p", "[a](JaVaScRiPt:x) [b](javascript:x) [c](java\\script:x) [d](//x.y) [e](vbscript:x)"]]),
]

TREE = """(text) => import("/page-markdown.js").then(({parse}) => {
  const tree = (node) => typeof node === "string" ? node : [node.t, ...node.c.map(tree)];
  return parse(text).map(tree);
})"""

# The elements and links that a text becomes, whole and piece by piece; the milliseconds that this took.
SHOWN = """([text, pieces]) => import("/page-markdown.js").then(({Rendered}) => {
  const made = document.createElement("div"), streamed = document.createElement("div");
  const start = performance.now();
  new Rendered(made).append(text, true);
  const took_ms = performance.now() - start;
  if (pieces) {
    const stream = new Rendered(streamed);
    let at = 0;
    for (const end of pieces) { stream.append(text.slice(at, end)); at = end; }
    stream.append(text.slice(at), true);
  }
  const all = [...made.querySelectorAll("*")];
  return {took_ms, same: !pieces || made.isEqualNode(streamed), text: pieces ? "" : made.textContent.slice(0, 100),
    html: [made.innerHTML.slice(0, 2000), streamed.innerHTML.slice(0, 2000)],
    names: [...new Set(all.map((e) => e.localName))], count: all.length,
    attributes: [...new Set(all.flatMap((e) => e.getAttributeNames()))],
    links: [...new Set(all.filter((e) => e.localName === "a").map((e) => e.protocol + " " + e.rel + " " + e.target))]};
})"""

PARTS = ["*", "**", "_", "`", "```", "\n", "\n\n", " ", "    ", "- ", "1. ", "> ", "# ", "|", "|-|-|\n", "a | b\n", "[", "]",
         "](", "https://x.y", "(", ")", "<", ">", "<script>", "\\", "&lt;", "~~", "word", "Wort ", "é", "🦉", "javascript:",
         "---\n", "===\n", "![", "\t", "  \n", "data:text/html,x", "\r\n", "x" * 40]
ALLOWED = {"p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "em", "strong", "del", "code", "a", "table",
           "tr", "th", "td", "pre", "div", "span", "button"}
ATTRIBUTES = {"href", "rel", "target", "class", "start", "tabindex", "role", "aria-label", "type"}


def evil(size):
    """Texts of about so many characters that cost much where time is not linear in them."""
    return {
        "quotes": ">" * size, "stars": "*a " * (size // 3), "closers": "a* " * (size // 3), "mixed": "*_a " * (size // 4),
        "crossed": "*a_ " * (size // 4), "pairs": "*a **b " * (size // 14) + "c** d* " * (size // 14),
        "brackets": "[" * size, "links": "[a](" * (size // 4), "images": "![](" * (size // 4), "parens": "[a]" + "(" * size,
        "ticks": " ".join("`" * i for i in range(1, int((2 * size) ** 0.5))), "urls": "https://" * (size // 8),
        "closed urls": ("http://a" + ")" * 1990 + " ") * (size // 2000),
        "entities": "&" * size, "rules": "- " * (size // 2), "heading": "# " + " " * size + "x" + "#" * size,
        "columns": "|" * size + "\n" + "|-" * (size // 2), "rows": "|a|b|\n|-|-|\n" + "|a|b|\n" * (size // 6),
        "items": "- a\n" * (size // 4), "lines": "a\n" * (size // 2), "steps": "\n".join(
            " " * (2 * (i % 300)) + "- a" for i in range(size // 300)), "emphasis": "*" * size + "a" + "*" * size,
        "spaces": " " * size + "x", "fences": "```\n" * (size // 4), "one line": "x" * size, "words": "word " * (size // 5),
    }


class Markdown(BrowserTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = FakeServer()
        cls.addClassCleanup(cls.server.stop)

    def test_cases(self):
        page = self.open(self.server.url)
        for text, tree in CASES:
            with self.subTest(text):
                self.assertEqual(page.evaluate(TREE, text), tree)

    def test_random_text_becomes_allowed_elements_however_it_comes(self):
        seed = random.randrange(1 << 32)
        rng = random.Random(seed)
        page = self.open(self.server.url)
        for _ in range(1500):
            text = "".join(rng.choice(PARTS) for _ in range(rng.randrange(60)))
            pieces = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
            with self.subTest(seed=seed, text=text, pieces=pieces):
                shown = page.evaluate(SHOWN, [text, pieces])
                self.assertLessEqual(set(shown["names"]), ALLOWED)
                self.assertLessEqual(set(shown["attributes"]), ATTRIBUTES)
                self.assertLessEqual(set(shown["links"]), {"https: noopener noreferrer _blank"})
                self.assertTrue(shown["same"], shown["html"])
        self.assertEqual(self.said, [])

    def test_time_is_linear(self):
        page = self.open(self.server.url)
        size = 60_000
        for name, text in evil(size).items():
            with self.subTest(name):
                once = min(page.evaluate(SHOWN, [text, None])["took_ms"] for _ in range(2))
                four = min(page.evaluate(SHOWN, [evil(4 * size)[name], None])["took_ms"] for _ in range(2))
                # Quadratic time would be 16 times as long, and seconds; less is noise of a busy machine.
                self.assertLess(four, max(1000, 10 * once), f"{once:.1f} ms, then {four:.1f} ms")

    def test_depth_and_number_are_bounded(self):
        page = self.open(self.server.url)
        depth = """(text) => import("/page-markdown.js").then(({Rendered}) => {
          const made = document.createElement("div");
          new Rendered(made).append(text, true);
          const deep = (e) => 1 + Math.max(0, ...[...e.children].map(deep));
          return deep(made);
        })"""
        n = 10_000
        for text in ("> " * n + "a", "*a " * n + "b*" * n, "**a" * n + "b**" * n, "[" * n + "a" + "](https://x.y)" * n,
                     "\n".join(" " * 2 * i + "- a" for i in range(300)), "- " * n + "a", "1. " * n + "a"):
            self.assertLessEqual(page.evaluate(depth, text), 60, text[:20])
        self.assertLess(page.evaluate(SHOWN, ["- a\n" * 200_000, None])["count"], 30_000)

    def test_evil_messages_stay_text_and_the_page_answers(self):
        attacks = ["<script>document.title='pwned'</script>", "<img src=x onerror=\"document.title='pwned'\">",
                   "[a](javascript:document.title='pwned')", "![a](data:image/svg+xml,<svg/onload=alert(1)>)",
                   "<iframe srcdoc='<script>parent.document.title=1</script>'>", "[x](https://x.y\"onclick=\"alert(1))",
                   "`<b>` ```<script>x</script>```"]
        texts = ["\n\n".join(attacks), "x" * (1 << 20), "> " * 10_000 + "deep", "*a " * 10_000 + "*b" * 10_000,
                 "\n".join(" " * (i % 400) + "- item" for i in range(10_000)), "|" * 100_000]
        messages = [m for text in texts for m in ({"role": "user", "content": text[:2000]},
                                                  {"role": "assistant", "content": text, "generated": True})]
        opened = self.server.add_session(messages, title="<b>title</b>")
        page = self.open(self.server.url, "/#" + opened)
        expect(page.locator("article")).to_have_count(len(messages))
        self.assertEqual(page.locator("#messages").locator("img, script, iframe, svg, b").count(), 0)
        self.assertEqual(page.title(), "Kvasir")
        expect(page.locator("#sessions li").first).to_contain_text("<b>title</b>")
        for text in attacks[:5]:
            self.assertIn(text.replace("`", ""), page.locator("article.assistant").first.inner_text())
        # A key that is pressed is seen within a moment.
        page.locator("#text").focus()
        took_ms = min(page.evaluate("""async (key) => {
          const start = performance.now();
          document.querySelector("#text").value += key;
          document.querySelector("#text").dispatchEvent(new Event("input"));
          await new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
          return performance.now() - start;
        }""", key) for key in "abcde")
        self.assertLess(took_ms, 100)  # 3 to 5; a page that lays all out anew takes 450
        self.assertEqual(self.said, [])


if __name__ == "__main__":
    main()
