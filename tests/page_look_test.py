#!/usr/bin/env python3
"""The page on screens of 375 and 1280 pixels, dark and light: what stays in view, names for screen readers (axe-core),
the keyboard alone, and 10,000 tokens that stream at 60 frames a second."""

import os
import re
import statistics

from needs import refused
from page_browser import SHOTS, BrowserTest, FakeServer, axe_source, expect, main, receipt

ANSWER = """## A cache in short

It keeps what was *computed* for a prompt, so that the **same beginning** costs nothing again:

1. find the longest known beginning
2. compute the rest
   - a block at a time

| source | time |
|---|--:|
| memory | 0.2 ms |
| disk | 3.1 ms |

```python
def ask(prompt):
    return cache.find(prompt) or compute(prompt)
```

> More is in [the paper](https://example.org/paper).
"""
SCREENS = [(375, "light"), (375, "dark"), (1280, "light"), (1280, "dark")]
# In a frame: what the page's thread may compute, and what is left of 1/60 s for a slow moment.
MOST_CPU_MS, MOST_GAP_MS = 8, 17.5
IN_VIEW = """(names) => names.filter((name) => {
  const box = document.querySelector(name).getBoundingClientRect();
  return box.width === 0 || box.top < 0 || box.left < 0 || box.bottom > innerHeight + 1 || box.right > innerWidth + 1;
})"""
# The length of the conversation that scrolls, and the place of a heading in it, in pixels.
LENGTH_AND_PLACE = """[document.querySelector("#scroll").scrollHeight,
                       document.querySelectorAll("article.assistant h3")[1].getBoundingClientRect().top]"""


class Look(BrowserTest):
    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.stop)

    def screen(self, width, scheme, path="/"):
        height = 667 if width < 500 else 800
        return self.open(self.server.url, path, viewport={"width": width, "height": height}, color_scheme=scheme,
                         has_touch=width < 500)

    def conversation(self):
        return self.server.add_session([
            {"role": "system", "content": "You are kind."}, {"role": "user", "content": "What is a prefix cache?"},
            {"role": "assistant", "content": ANSWER, "generated": True, "reasoning_content": "They ask about caches."},
            {"role": "user", "content": "What is the weather in Oslo?"},
            {"role": "assistant", "content": "", "generated": True, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]},
            {"role": "tool", "content": '{"sky": "clear"}'},
            {"role": "assistant", "content": "The sky over Oslo is clear. " * 12, "generated": True},
        ], title="What is a prefix cache?")

    def test_what_one_needs_is_in_view_and_nothing_scrolls_to_the_side(self):
        opened = self.conversation()
        self.server.add_session([{"role": "user", "content": "x"}], "api", "Made by a script")
        for width, scheme in SCREENS:
            with self.subTest(width=width, scheme=scheme):
                page = self.screen(width, scheme, "/#" + opened)
                expect(page.locator("article")).to_have_count(7)
                needed = ["header", "#new", "#text", "#send", "#show-cache", "#show-settings"]
                for _ in range(2):
                    self.assertEqual(page.evaluate(IN_VIEW, needed), [])
                    self.assertLessEqual(*page.evaluate("[document.documentElement.scrollWidth, innerWidth]"))
                    self.assertLessEqual(*page.evaluate("[document.documentElement.scrollHeight, innerHeight]"))
                    page.screenshot(path=SHOTS / f"chat-{width}-{scheme}.png")
                    page.locator("#scroll").evaluate("(e) => e.scrollTop = 0")
                    page.wait_for_timeout(50)
                page.screenshot(path=SHOTS / f"top-{width}-{scheme}.png")
                back = page.evaluate("getComputedStyle(document.body).backgroundColor")
                self.assertEqual(sum(map(int, re.findall(r"\d+", back)[:3])) < 384, scheme == "dark")
                page.locator("#show-cache").click()
                expect(page.locator("#prefixes li")).to_have_count(3)
                self.assertEqual(page.evaluate(IN_VIEW, ["header", "#new", "#show-cache"]), [])
                self.assertLessEqual(*page.evaluate("[document.documentElement.scrollWidth, innerWidth]"))
                page.screenshot(path=SHOTS / f"cache-{width}-{scheme}.png")
                page.locator("#show-settings").click()
                page.screenshot(path=SHOTS / f"settings-{width}-{scheme}.png")
                self.assertEqual(self.said, [])

    def test_an_answer_is_rendered_folded_and_copied(self):
        page = self.open(self.server.url, "/#" + self.conversation(), permissions=["clipboard-read", "clipboard-write"])
        first = page.locator("article.assistant").first
        for name, text in (("h3", "A cache in short"), ("em", "computed"), ("strong", "same beginning"), ("th", "source"),
                           ("td.right", "0.2 ms"), ("ol > li > ul > li", "a block at a time"), ("pre code", "def ask")):
            expect(first.locator(name).first).to_contain_text(text)
        link = first.locator("a")
        self.assertEqual((link.get_attribute("rel"), link.get_attribute("target")), ("noopener noreferrer", "_blank"))
        first.get_by_role("button", name="Copy code").click()
        self.assertEqual(page.evaluate("navigator.clipboard.readText()"),
                         "def ask(prompt):\n    return cache.find(prompt) or compute(prompt)")
        page.get_by_role("button", name="Copy message 2").click()
        self.assertEqual(page.evaluate("navigator.clipboard.readText()"), ANSWER)
        for summary, text in (("Thoughts", "They ask about caches."), ("Call of weather", "Oslo"),
                              ("Result of a tool", "clear"), ("System text", "You are kind.")):
            fold = page.locator("details", has_text=summary).first
            expect(fold.get_by_text(text)).to_be_hidden()
            fold.locator("summary").click()
            expect(fold.get_by_text(text)).to_be_visible()
        self.assertEqual(self.said, [])

    def test_cells_of_a_table_break_between_words_only(self):
        words = "measurements considerably reproducibility"
        rows = "".join(f"| {words} | {words} | {words} | {words} |\n" for _ in range(2))
        opened = self.server.add_session([{"role": "user", "content": "A table?"}, {
            "role": "assistant", "generated": True, "content": "| a | b | c | d |\n|---|---|---|---|\n" + rows}])
        page = self.screen(375, "light", "/#" + opened)
        expect(page.locator("td")).to_have_count(8)
        lines = page.evaluate("""() => [...document.querySelectorAll("td")].flatMap((cell) => {
          const text = cell.firstChild;
          return [...text.data.matchAll(/\\w+/g)].map((word) => {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            return range.getClientRects().length;
          });
        })""")
        self.assertEqual(lines, [1] * 24)
        self.assertLessEqual(*page.evaluate("[document.documentElement.scrollWidth, innerWidth]"))

    def test_conversations_of_programs_are_apart_and_the_page_opens_an_empty_one(self):
        self.conversation()
        self.server.add_session([{"role": "user", "content": "x"}], "api", "Made by a script")
        page = self.open(self.server.url)
        expect(page.locator("#welcome")).to_be_visible()
        expect(page.locator("article")).to_have_count(0)
        expect(page.locator("#sessions li")).to_have_count(1)
        expect(page.locator("#sessions")).to_contain_text("What is a prefix cache?")
        expect(page.locator("#program-sessions")).to_be_hidden()
        page.locator("#programs summary").click()
        expect(page.locator("#program-sessions")).to_contain_text("Made by a script")
        page.locator("#program-sessions button").first.click()
        expect(page.locator("article")).to_have_count(1)
        page.locator("#new").click()
        expect(page.locator("#welcome")).to_be_visible()
        page.go_back()
        expect(page.locator("article")).to_have_count(1)

    def test_an_error_stands_above_the_message_box(self):
        for width, scheme in ((375, "dark"), (1280, "light")):
            page = self.screen(width, scheme, "/#" + self.conversation())
            expect(page.locator("article")).to_have_count(7)
            self.server.failure = (400, "the prompt has 9000 tokens; the context has 8192")
            page.locator("#text").fill("a long question")
            page.locator("#text").press("Enter")
            expect(page.locator("#error-text")).to_have_text("the prompt has 9000 tokens; the context has 8192")
            self.assertEqual(page.evaluate(IN_VIEW, ["#error", "#text"]), [])
            gap = page.evaluate("document.querySelector('#say').getBoundingClientRect().top - "
                                "document.querySelector('#error').getBoundingClientRect().bottom")
            self.assertTrue(0 <= gap < 20, gap)
            expect(page.locator("article")).to_have_count(7)
            expect(page.locator("#text")).to_have_value("a long question")
            page.screenshot(path=SHOTS / f"error-{width}-{scheme}.png")
            page.get_by_role("button", name="Close this message").click()
            expect(page.locator("#error")).to_be_hidden()
            self.server.failure = None

    def test_the_disk_is_shown_with_its_room_and_state(self):
        page = self.open(self.server.url)
        page.locator("#show-cache").click()
        bar, text = page.locator("#disk"), page.locator("#disk-text")

        def widths():
            return [round(100 * part["width"] / sum(one["width"] for one in parts)) for part in parts] if (parts := bar.evaluate(
                "(e) => [...e.children].map((one) => ({width: one.getBoundingClientRect().width}))")) else []

        expect(text).to_have_text("1,000 blocks in /var/cache/kv; 5.0 MiB written today.")
        expect(bar).to_have_attribute("aria-label", "3.0 GiB used, 17.0 GiB free")
        expect(page.locator("#disk-list li")).to_have_text(["3.0 GiB used", "17.0 GiB free"])
        self.assertEqual(widths(), [15, 85])
        disk = self.server.tiers["disk"]
        disk.update(state="full", reason="the file system has 1 GiB left", used_bytes=20 << 30, blocks=1)
        self.server.tiers["remote"] = {"host": "redis:6379", "state": "off"}
        expect(text).to_have_text("1 block in /var/cache/kv; 5.0 MiB written today. The disk is full: the file system has 1 GiB "
                                  "left. The fleet's store at redis:6379 is off.")
        expect(page.locator("#disk-list li")).to_have_text(["20.0 GiB used", "0 bytes free"])
        self.assertEqual(widths(), [100])
        self.server.tiers.update(disk=None, remote=None)
        expect(text).to_have_text("This server keeps nothing on a disk.")
        expect(page.locator("#disk-list li")).to_have_count(0)
        self.assertEqual(widths(), [])
        del self.server.tiers["disk"]  # of several keys: the operator's alone
        expect(page.locator("#disk-section")).to_be_hidden()
        self.assertEqual(self.said, [])

    def test_settings_are_sent(self):
        self.server.deltas = [{"content": "Yes."}]
        page = self.open(self.server.url)
        page.locator("#show-settings").click()
        page.locator("#temperature").fill("0.5")
        page.locator("#max-tokens").fill("77")
        page.locator("#system").fill("You are brief.")
        page.locator("#save").click()
        sent = []
        page.on("request", lambda request: request.method == "POST" and sent.append(request.post_data_json))
        self.ask(page, "Are you?")
        self.assertEqual(sent[0], {"origin": "page", "system": "You are brief."})
        self.assertEqual((sent[1]["temperature"], sent[1]["max_tokens"]), (0.5, 77))
        page.reload()
        page.locator("#show-settings").click()
        expect(page.locator("#temperature")).to_have_value("0.5")

    def test_axe_finds_no_violation(self):
        source = axe_source()
        if source is None:
            refused("npm could not install axe-core")
        opened = self.conversation()
        self.server.add_session([{"role": "user", "content": "x"}], "api", "Made by a script")
        for width, scheme in SCREENS:
            page = self.screen(width, scheme, "/#" + opened)
            expect(page.locator("article")).to_have_count(7)
            page.evaluate("(all) => localStorage.setItem('kvasir-receipts', JSON.stringify(all))", {opened: {2: receipt()}})
            page.reload()
            expect(page.locator(".receipt")).to_have_count(1)
            page.evaluate(source)

            def check(view):
                found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
                told = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]
                self.assertEqual(told, [], f"{view}, {width} pixels, {scheme}")

            check("chat")
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            page.get_by_role("button", name="Edit message 3").click()
            check("folds and an edit")
            if width < 500:
                page.locator("#menu").click()
                check("menu")
                page.keyboard.press("Escape")
            page.evaluate("document.querySelector('#error-text').textContent = 'wrong'; "
                          "document.querySelector('#error').hidden = false")
            check("error")
            page.locator("#new").click()
            check("welcome")
            page.locator("#show-cache").click()
            expect(page.locator("#prefixes li")).to_have_count(3)
            check("cache")
            page.locator("#show-settings").click()
            check("settings")

    def test_the_keyboard_alone(self):
        self.server.deltas = [{"content": "One.\n\n```\ncode\n```\n"}]
        opened = self.conversation()
        page = self.open(self.server.url)
        press = page.keyboard.press

        def tab_to(name):
            for _ in range(80):
                if page.evaluate("(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
                                 " || document.activeElement.id).trim()") == name:
                    return
                press("Tab")
            self.fail(f"the tab key never comes to {name}")

        page.keyboard.type("Hello there")  # the message box has the focus when the page opens
        press("Enter")
        self.until_answered(page)
        expect(page.locator("article")).to_have_count(2)
        expect(page.locator("#text")).to_be_focused()
        for name in ("Conversations", "Settings", "New conversation", "Delete conversation Hello there", "Messages",
                     "Copy message 0", "Edit message 0", "Copy code", "Code", "Copy message 1", "Regenerate message 1",
                     "Fork message 1", "Forget message 1", "Message", "Send"):
            if name != "Conversations":  # on a phone only
                tab_to(name)
        tab_to("Settings")
        press("Enter")
        expect(page.locator("#system")).to_be_focused()
        press("Escape")
        expect(page.locator("#settings")).to_be_hidden()
        expect(page.locator("#show-settings")).to_be_focused()
        tab_to("What is a prefix cache?")
        press("Enter")
        expect(page.locator("article")).to_have_count(7)
        self.assertIn(opened, page.url)
        tab_to("Edit message 1")
        press("Enter")
        expect(page.get_by_label("New text of message 1")).to_be_focused()
        press("Escape")
        expect(page.get_by_role("button", name="Edit message 1")).to_be_focused()
        tab_to("Cache")
        press("Enter")
        expect(page.locator("#prefixes li").first).to_be_visible()
        self.assertEqual(self.said, [])

    def test_ten_thousand_tokens_stream_at_sixty_frames(self):
        words = ("the cache keeps *what* was **computed** for a `prompt` so that its beginning costs nothing again and "
                 "only what differs is computed once more").split()
        tokens = []
        for i in range(10_000):
            place = i % 400
            tokens.append({0: "\n\n## Part\n\n", 100: "\n\n- item\n- ", 200: "\n\n```js\n", 300: "\n```\n\n"}.get(
                place, words[i % len(words)] + (" " if place % 12 else "\n" if 200 < place < 300 else " ")))
        self.server.deltas = [{"content": token} for token in tokens]
        self.server.pause_s, self.server.events_at_once = 0.01, 10  # 1,000 tokens a second, as no model here does
        page = self.screen(1280, "light")
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})

        def cpu_ms():  # of the page's thread
            metrics = {m["name"]: m["value"] for m in client.send("Performance.getMetrics")["metrics"]}
            return 1000 * metrics["TaskDuration"]

        page.evaluate("""() => {
          window.gaps = [];
          window.shifts = 0;
          new PerformanceObserver((list) => list.getEntries().forEach((e) => shifts += e.value)).observe({type: "layout-shift"});
          let last = performance.now();
          const frame = (now) => { gaps.push(now - last); last = now; window.frame = requestAnimationFrame(frame); };
          requestAnimationFrame(frame);
        }""")
        before = cpu_ms()
        page.locator("#text").fill("Tell me everything.")
        page.locator("#text").press("Enter")
        expect(page.locator("article.assistant h3").first).to_be_visible()
        # A reader who scrolls up is left there.
        page.wait_for_timeout(2000)
        page.locator("#scroll").hover()
        page.mouse.wheel(0, -300)
        expect(page.locator("#to-end")).to_be_visible()
        page.wait_for_timeout(500)  # a wheel scrolls for some frames
        length, place = page.evaluate(LENGTH_AND_PLACE)
        page.wait_for_timeout(1500)
        longer, later = page.evaluate(LENGTH_AND_PLACE)
        self.assertGreater(longer, length)
        self.assertAlmostEqual(later, place, delta=1)
        page.locator("#to-end").click()
        self.until_answered(page)
        gaps, shifts = page.evaluate("cancelAnimationFrame(frame), [gaps.slice(5), shifts]")
        used_ms = (cpu_ms() - before) / len(gaps)
        late = sum(gap > 34 for gap in gaps) / len(gaps)
        print(f"{len(gaps)} frames, a gap of {statistics.median(gaps):.1f} ms (median), {100 * late:.1f}% over 34 ms, at most "
              f"{max(gaps):.0f} ms; {used_ms:.1f} ms of computing a frame; layout shifts {shifts:.3f}")
        expect(page.locator("article.assistant .copy")).to_have_count(25)
        self.assertEqual(page.locator("article.assistant .body").inner_text().count("computed"),
                         "".join(tokens).count("computed"))
        self.assertLess(used_ms, MOST_CPU_MS)
        if os.environ.get("KVASIR_SLOW"):  # alone on the machine
            self.assertLess(statistics.median(gaps), MOST_GAP_MS)
            self.assertLess(late, 0.02)
        self.assertLess(shifts, 0.1)
        expect(page.locator("article.assistant .legend")).to_be_in_viewport()


if __name__ == "__main__":
    main()
