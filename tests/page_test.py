#!/usr/bin/env python3
"""The page at `/`, in a browser: chats, edits, forks, forgetting, the cache's view, keys and phones."""

import contextlib
import re
import shutil
import signal
import sys
import threading
import unittest

from server_harness import ROOT, Server

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium")
SYSTEM = "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."
SMALL = ["--kv-memory", "16MiB", "--disk", "none"]
SHOTS = ROOT / "build" / "screenshots"


@contextlib.contextmanager
def slowed(process):
    """The process is stopped most of the time."""
    ended = threading.Event()

    def stop_and_go():
        while not ended.wait(0.002):
            process.send_signal(signal.SIGSTOP)
            ended.wait(0.04)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        expect.set_options(timeout=60_000)  # the model answers within it on a busy machine too
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        SHOTS.mkdir(parents=True, exist_ok=True)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()

    def open(self, url, **options):
        """A page without messages on its console, and without requests to elsewhere."""
        context = self.browser.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        self.said = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.assertTrue(request.url.startswith(url), request.url))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(url + "/")
        expect(page.locator("#model")).not_to_be_empty()
        return page

    def ask(self, page, text):
        count = page.locator("article").count()
        page.locator("#text").fill(text)
        page.locator("#text").press("Enter")
        expect(page.locator("article .actions")).to_have_count(count + 2)

    def begin(self, page, text="Where does Anna live?"):
        page.locator("#system").fill(SYSTEM)
        self.ask(page, text)

    def test_a_chat_says_where_its_prompts_came_from(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            expect(page.locator("article.assistant .text")).to_contain_text("Oslo")
            self.ask(page, "What is the code of the green safe?")
            answer = page.locator("article.assistant").nth(1)
            expect(answer.locator(".text")).to_contain_text("4711")
            expect(answer.locator(".receipt")).to_contain_text("from pool")
            expect(answer.locator(".receipt")).to_contain_text("first token after")
            self.assertRegex(answer.locator(".bar").get_attribute("aria-label"),
                             r"^Prompt of \d+ tokens: .*\d+ computed$")
            expect(page.locator("article.assistant").nth(0).locator(".receipt")).to_contain_text("nothing of it was known")
            page.screenshot(path=SHOTS / "chat.png", full_page=True)
            # It comes back after a reload; the system message too.
            page.reload()
            expect(page.locator("article.assistant")).to_have_count(2)
            self.assertEqual(page.locator("#system").input_value(), SYSTEM)
            self.assertEqual(self.said, [])

    def test_messages_are_edited_forked_and_forgotten(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            page.get_by_role("button", name="Edit message 1").click()
            page.get_by_label("New text of message 1").fill("Where does Anna live now?")
            page.get_by_role("button", name="Save").click()
            expect(page.locator("article.user .text")).to_have_text("Where does Anna live now?")
            expect(page.locator("article.assistant .actions")).to_have_count(1)
            page.get_by_role("button", name="Fork message 1").click()
            expect(page.locator("article")).to_have_count(1)
            expect(page.locator("#sessions li")).to_have_count(2)
            page.locator("#sessions li button").nth(2).click()
            expect(page.locator("article")).to_have_count(2)
            page.locator("#system").fill("You are Kvasir.")
            page.locator("#system-form button").click()
            page.get_by_role("button", name="Forget message 2").click()
            expect(page.locator("#error")).to_contain_text("Forgotten: ")
            expect(page.locator("article")).to_have_count(1)
            page.get_by_role("button", name="Delete conversation").first.click()
            expect(page.locator("#sessions li")).to_have_count(1)
            self.assertEqual(self.said, [])

    def test_a_messages_text_is_never_html(self):
        attack = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
        with Server(*SMALL) as own:
            page = self.open(own.url)
            page.locator("#system").fill(attack)
            self.ask(page, attack)
            page.get_by_role("button", name="Edit message 2").click()
            page.get_by_label("New text of message 2").fill(attack)
            page.get_by_role("button", name="Save").click()
            expect(page.locator("article.assistant .text")).to_have_text(attack)
            expect(page.locator("article.user .text")).to_have_text(attack)
            page.locator("#show-cache").click()
            expect(page.locator("#prefixes code").first).to_contain_text("<img")
            self.assertEqual(page.locator("article img, article script, #sessions img, #prefixes img").count(), 0)
            self.assertEqual(page.title(), "Kvasir")
            # Were there a script in the text all the same, it would not run.
            page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
            page.wait_for_timeout(200)
            self.assertEqual(page.title(), "Kvasir")

    def test_the_cache_is_shown_as_blocks_and_as_a_tree(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            page.get_by_role("button", name="Fork message 1").click()
            expect(page.locator("article")).to_have_count(1)
            self.ask(page, "Who are you?")
            page.locator("#show-cache").click()
            expect(page.locator("#blocks")).to_have_attribute("aria-label", re.compile(r"\d+ blocks used by requests, [1-9]"))
            expect(page.locator("#prefixes li").first).to_contain_text("hit")
            expect(page.locator("#prefixes")).to_contain_text("Anna lives in Oslo")
            expect(page.locator("#evictions-text")).to_contain_text("blocks were evicted")
            page.screenshot(path=SHOTS / "cache.png", full_page=True)
            self.assertEqual(self.said, [])

    def test_an_answer_is_stopped_and_what_came_stays(self):
        # Hot sampling without an end, by a server that runs 2 ms of every 42: an answer that is long in coming.
        with Server(*SMALL) as own, slowed(own.process):
            page = self.open(own.url)
            page.route("**/generate", lambda route: route.continue_(
                post_data={**route.request.post_data_json, "temperature": 3, "ignore_eos": True, "max_tokens": 1800}))
            page.locator("#text").fill("Tell me everything.")
            page.locator("#text").press("Enter")
            expect(page.locator("article.assistant .text")).not_to_be_empty()
            expect(page.locator("#stop")).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.locator("#stop")).to_be_hidden()
            expect(page.locator("#error")).to_be_hidden()
            expect(page.locator("article.user .actions")).to_have_count(1)

    def test_a_key_is_asked_for_and_kept_in_the_tab_only(self):
        with Server(*SMALL, "--api-key", "secret-1") as own:
            context = self.browser.new_context()
            self.addCleanup(context.close)
            page = context.new_page()
            page.goto(own.url + "/")
            expect(page.locator("#error")).to_contain_text("key")
            page.locator("#key").fill("secret-1")
            page.locator("#key").press("Enter")
            expect(page.locator("#model")).not_to_be_empty()
            self.assertEqual(page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]"), [0, 1, ""])
            self.ask(page, "Who are you?")

    def test_a_phone_needs_no_scrolling_to_the_side(self):
        with Server(*SMALL) as own:
            page = self.open(own.url, viewport={"width": 360, "height": 640}, has_touch=True)
            self.begin(page, "word " * 40 + "x" * 300)
            for view in ("#show-cache", "#show-chat"):
                page.locator(view).tap()
                width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                self.assertLessEqual(width[0], width[1])
            page.screenshot(path=SHOTS / "phone.png", full_page=True)

    def test_a_phone_shows_the_end_of_the_last_answer(self):
        with Server(*SMALL) as own:
            page = self.open(own.url, viewport={"width": 360, "height": 640}, has_touch=True)
            self.begin(page)
            for _ in range(3):
                self.ask(page, "What is the code of the green safe?")
                expect(page.locator("article.assistant .text").last).to_be_in_viewport()
                expect(page.locator("#send")).to_be_in_viewport()

    def test_thoughts_are_shown_apart(self):
        template = ("{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}"
                    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}{# </think> #}")
        with Server(*SMALL, "--chat-template", template) as own:
            page = self.open(own.url)
            self.ask(page, "Who are you?")  # the bundled model never closes the thought
            expect(page.locator("article.assistant .text")).to_be_empty()
            expect(page.locator("article.assistant .thought p")).not_to_be_empty()
            page.locator("article.assistant summary").click()
            expect(page.locator("article.assistant .thought p")).to_be_visible()
            self.assertEqual(self.said, [])

    def test_the_keyboard_reaches_everything(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            page.get_by_role("button", name="Edit message 1").press("Enter")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")  # saves
            expect(page.get_by_role("button", name="Edit message 1")).to_be_focused()
            page.get_by_role("button", name="Edit message 2").press("Enter")
            page.keyboard.press("Tab")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")  # cancels
            expect(page.get_by_role("button", name="Edit message 2")).to_be_focused()
            seen = set()
            page.locator("#show-chat").focus()
            for _ in range(40):
                seen.add(page.evaluate("(document.activeElement.getAttribute('aria-label') || document.activeElement.id || "
                                       "document.activeElement.textContent)"))
                page.keyboard.press("Tab")
            for name in ("show-chat", "show-cache", "show-key", "new", "system", "text", "send", "Edit message 1",
                         "Fork message 1", "Forget message 2"):
                self.assertIn(name, seen)

    def test_what_has_no_text_of_its_own_has_a_label(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            page.locator("#show-cache").click()
            expect(page.locator("#prefixes li").first).to_be_visible()
            unnamed = page.evaluate("""() => [...document.querySelectorAll("button, input, textarea, [role=img], progress")]
                .filter((e) => !e.textContent.trim() && !e.getAttribute("aria-label") && !e.labels?.length)
                .map((e) => e.outerHTML)""")
            self.assertEqual(unnamed, [])
            self.assertEqual(page.evaluate("document.querySelector('#messages').getAttribute('aria-live')"), "polite")


if __name__ == "__main__":
    if sync_playwright is None or CHROMIUM is None:
        print("skipped: playwright and chromium are not installed")
        sys.exit(77)
    unittest.main()
