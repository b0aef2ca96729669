#!/usr/bin/env python3
"""The page at `/`, in a browser, with the server: chats, edits, forks, forgetting, receipts, the cache's view, phones."""

import contextlib
import re
import signal
import tempfile
import threading

from page_browser import SHOTS, BrowserTest, expect, main
from server_harness import Server

SYSTEM = "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."
SMALL = ["--kv-memory", "16MiB", "--disk", "none"]


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


class PageTest(BrowserTest):
    def set_system(self, page, text):
        page.locator("#show-settings").click()
        page.locator("#system").fill(text)
        page.locator("#save").click()
        expect(page.locator("#settings")).to_be_hidden()

    def begin(self, page, text="Where does Anna live?"):
        self.set_system(page, SYSTEM)
        self.ask(page, text)

    def test_a_chat_says_where_its_prompts_came_from(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            expect(page.locator("article.assistant .body")).to_contain_text("Oslo")
            self.ask(page, "What is the code of the green safe?")
            answer = page.locator("article.assistant").nth(1)
            expect(answer.locator(".body")).to_contain_text("4711")

            def check():
                expect(answer.locator(".receipt")).to_contain_text("from memory")
                expect(answer.locator(".receipt")).to_contain_text("first word after")
                self.assertRegex(answer.locator(".bar").get_attribute("aria-label"),
                                 r"^Prompt of \d+ tokens: .*\d+ computed$")
                expect(page.locator("article.assistant").nth(0).locator(".receipt")).to_contain_text(
                    "nothing of it was known")

            check()
            page.screenshot(path=SHOTS / "chat.png")
            page.reload()  # it comes back, and its receipts
            expect(page.locator("article.assistant")).to_have_count(2)
            check()
            page.locator("#show-settings").click()
            expect(page.locator("#system")).to_have_value(SYSTEM)
            page.locator("#cancel").click()
            # The page itself opens an empty conversation; the list has the first words of this one.
            page.goto(own.url + "/")
            expect(page.locator("#welcome")).to_be_visible()
            expect(page.locator("#sessions li")).to_have_count(1)
            expect(page.locator("#sessions li button").first).to_have_text("Where does Anna live?")
            self.assertEqual(self.said, [])

    def test_messages_are_edited_forked_and_forgotten(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            page.get_by_role("button", name="Edit message 1").click()
            page.get_by_label("New text of message 1").fill("Where does Anna live now?")
            page.keyboard.press("Enter")
            expect(page.locator("article.user .body")).to_have_text("Where does Anna live now?")
            expect(page.locator("article.assistant .receipt")).to_have_count(1)
            expect(page.locator("#sessions li button").first).to_have_text("Where does Anna live now?")
            page.get_by_role("button", name="Edit message 2").click()
            page.get_by_label("New text of message 2").fill("In **Bergen**.")
            page.keyboard.press("Shift+Enter")
            expect(page.get_by_label("New text of message 2")).to_have_value("In **Bergen**.\n")
            page.keyboard.press("Control+Enter")
            expect(page.locator("article.assistant strong")).to_have_text("Bergen")
            page.get_by_role("button", name="Fork message 1").click()
            expect(page.locator("article")).to_have_count(2)  # the system text and the question
            expect(page.locator("#sessions li")).to_have_count(2)
            page.locator("#sessions li button").nth(2).click()
            expect(page.locator("article")).to_have_count(3)
            self.set_system(page, "You are Kvasir.")
            page.get_by_role("button", name="Forget message 2").click()
            expect(page.locator("#note")).to_contain_text("Forgotten: ")
            expect(page.locator("article")).to_have_count(2)
            page.get_by_role("button", name="Delete conversation").first.click()
            expect(page.locator("#sessions li")).to_have_count(1)
            self.assertEqual(self.said, [])

    def test_forget_says_what_another_conversation_keeps(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            first = page.url
            page.get_by_role("button", name="Fork message 2").click()
            expect(page.locator("#sessions li")).to_have_count(2)
            expect(page).not_to_have_url(first)
            with page.expect_response("**/forget") as forgotten:
                page.get_by_role("button", name="Forget message 1").click()
            gone = forgotten.value.json()
            self.assertGreater(gone["kept_shared"], 1)
            self.assertEqual((gone["erased_blocks"], gone["erased_tokens"]), (0, 0))
            expect(page.locator("#note")).to_have_text(f"Forgotten: erased 0 blocks with 0 tokens; kept {gone['kept_shared']} "
                                                       "blocks that another conversation contains.")
            self.assertEqual(self.said, [])

    def test_a_first_question_that_is_refused_leaves_no_conversation(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.set_system(page, SYSTEM)
            text = "word " * 4000
            page.locator("#text").fill(text)
            page.locator("#text").press("Enter")
            expect(page.locator("#error-text")).to_have_text(re.compile(
                r"^This conversation is too long: it has \d,\d{3} tokens, and the model reads 2,048 at most\. Shorten"))
            expect(page.locator("#welcome")).to_be_visible()
            expect(page.locator("#text")).to_have_value(text)
            expect(page.locator("#sessions li")).to_have_count(0)
            self.assertEqual((own.get("/v1/sessions")["data"], page.url), ([], own.url + "/"))
            self.ask(page, "Where does Anna live?")  # with the system text that was set
            expect(page.locator("article")).to_have_count(3)
            page.locator("#text").fill("word " * 100_000)
            page.locator("#text").press("Enter")
            expect(page.locator("#error-text")).to_contain_text("it has more than 73,728 tokens, and")
            expect(page.locator("#sessions li")).to_have_count(1)

    def test_an_error_ends_with_the_name_of_the_field(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            page.evaluate("localStorage.setItem('kvasir-settings', '{\"temperature\": -1}')")
            page.locator("#text").fill("Who are you?")
            page.locator("#text").press("Enter")
            expect(page.locator("#error-text")).to_have_text("-1 is not between 0 and 100 (temperature)")

    def test_an_answer_is_generated_again(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            self.ask(page, "What is the code of the green safe?")
            expect(page.get_by_role("button", name="Regenerate")).to_have_count(1)
            before = page.locator("article.assistant .body").nth(1).inner_text()
            with page.expect_response(lambda response: response.url.endswith("/generate")) as generated:
                page.get_by_role("button", name="Regenerate message 4").click()
            generated.value.finished()
            expect(page.locator("article.assistant .receipt").nth(1)).to_contain_text("from memory")
            expect(page.get_by_role("button", name="Regenerate message 4")).to_be_visible()
            expect(page.locator("article")).to_have_count(5)
            self.assertTrue(before)
            session = own.get("/v1/sessions")["data"][0]
            self.assertEqual((session["messages"], session["origin"]), (5, "page"))

    def test_conversations_of_programs_are_apart(self):
        with Server(*SMALL) as own:
            own.request("POST", "/v1/sessions", {"messages": [{"role": "user", "content": "made by a script"}]})
            page = self.open(own.url)
            expect(page.locator("#programs summary")).to_have_text("Made by programs (1)")
            expect(page.locator("#sessions li")).to_have_count(0)
            page.locator("#programs summary").click()
            expect(page.locator("#program-sessions li button").first).to_have_text("made by a script")

    def test_a_messages_text_is_never_html(self):
        attack = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.set_system(page, attack)
            self.ask(page, attack)
            page.get_by_role("button", name="Edit message 2").click()
            page.get_by_label("New text of message 2").fill(attack)
            page.locator(".edit .main").click()
            expect(page.locator("article.assistant .body")).to_have_text(attack)
            expect(page.locator("article.user .body")).to_have_text(attack)
            page.locator("#show-cache").click()
            expect(page.locator("#prefixes code").first).to_contain_text("<img")
            self.assertEqual(page.locator("article img, article script, #sessions img, #prefixes img").count(), 0)
            self.assertEqual(page.title(), "Kvasir")
            self.assertEqual(self.said, [])
            # A page that tried to write it as HTML could not.
            with self.assertRaisesRegex(Exception, "TrustedHTML"):
                page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
            with self.assertRaisesRegex(Exception, "TrustedScript"):
                page.evaluate("document.createElement('img').setAttribute('onerror', 'document.title = 1')")

    def test_the_cache_is_shown_with_the_last_hour_and_as_a_tree(self):
        with Server(*SMALL) as own:
            page = self.open(own.url)
            self.begin(page)
            page.get_by_role("button", name="Fork message 1").click()
            expect(page.locator("article")).to_have_count(2)
            self.ask(page, "Who are you?")
            page.locator("#show-cache").click()
            expect(page.locator("#hour-share")).to_have_text(re.compile(r"^[1-9]\d?%$"))
            expect(page.locator("#hour-text")).to_contain_text("prompt tokens in 2 answers")
            expect(page.locator("#hour-list")).to_contain_text("computed")
            expect(page.locator("#hour-chart rect").first).to_be_attached()
            expect(page.locator("#blocks")).to_have_attribute("aria-label", re.compile(r"kept for later prompts"))
            plan = own.get("/v1/cache")  # the figures are those of the log
            sizes = [f"{bytes / (1 << 20):.1f} MiB" if bytes < 100 << 20 else f"{bytes / (1 << 20):.0f} MiB"
                     for bytes in (plan["kv_bytes"], plan["total_bytes"] + plan["process_bytes"], plan["process_bytes"])]
            expect(page.locator("#blocks-text")).to_have_text(re.compile(
                rf"^\d+ tokens cached in {sizes[0]} of KV; 0 blocks evicted since the start\. "
                rf"The server takes {sizes[1]} at most, {sizes[2]} of it for the process\.$"))
            expect(page.locator("#disk-text")).to_have_text("This server keeps nothing on a disk.")
            expect(page.locator("#prefixes li").first).to_contain_text("hit")
            expect(page.locator("#prefixes")).to_contain_text("Anna lives in Oslo")
            page.screenshot(path=SHOTS / "cache.png", full_page=True)
            self.assertEqual(self.said, [])

    def test_the_disk_is_shown_as_the_server_has_it(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--kv-memory", "16MiB", "--disk", folder, "--disk-cap", "64MiB", "--disk-reserve", "0") as own:
                page = self.open(own.url)
                self.begin(page)
                own.post("/v1/cache/flush", {})
                page.locator("#show-cache").click()
                disk = own.get("/v1/cache")["cache"]["disk"]
                self.assertGreater(disk["blocks"], 0)

                def size(amount):
                    for unit in ("bytes", "KiB", "MiB"):
                        if amount < 1024 or unit == "MiB":
                            return f"{amount:.0f} {unit}" if unit == "bytes" or amount >= 100 else f"{amount:.1f} {unit}"
                        amount /= 1024

                used, written = size(disk["used_bytes"]), size(disk["written_today_bytes"])
                expect(page.locator("#disk-text")).to_have_text(f"{disk['blocks']} block{'s' if disk['blocks'] > 1 else ''} in "
                                                                f"{disk['folder']}; {written} written today.")
                expect(page.locator("#disk")).to_have_attribute(
                    "aria-label", f"{used} used, {size(disk['cap_bytes'] - disk['used_bytes'])} free")
                self.assertEqual(self.said, [])

    def test_an_answer_is_stopped_and_what_came_stays(self):
        # Hot sampling without an end, by a server that runs 2 ms of every 42: an answer that is long in coming.
        with Server(*SMALL) as own, slowed(own.process):
            page = self.open(own.url)
            page.route("**/generate", lambda route: route.continue_(
                post_data={**route.request.post_data_json, "temperature": 3, "ignore_eos": True, "max_tokens": 1800}))
            page.locator("#text").fill("Tell me everything.")
            page.locator("#text").press("Enter")
            expect(page.locator("article.assistant .body")).not_to_be_empty()
            expect(page.locator("#stop")).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.locator("#stop")).to_be_hidden()
            expect(page.locator("#error")).to_be_hidden()
            expect(page.locator("article.user .actions")).to_have_count(1)
            expect(page.locator("article.assistant .body")).not_to_be_empty()

    def test_a_key_is_asked_for_and_kept_in_the_tab_only(self):
        with Server(*SMALL, "--api-key", "secret-1") as own:
            context = self.browser.new_context()
            self.addCleanup(context.close)
            page = context.new_page()
            page.goto(own.url + "/")
            expect(page.locator("#error-text")).to_have_text("The server asks for an API key.")
            expect(page.locator("#key")).to_be_focused()
            page.locator("#key").fill("secret-1")
            page.locator("#key").press("Enter")
            expect(page.locator("#model")).not_to_be_empty()
            expect(page.locator("#error")).to_be_hidden()
            self.ask(page, "Who are you?")
            kept = page.evaluate("JSON.stringify([{...localStorage}, document.cookie])")
            self.assertNotIn("secret", kept)
            self.assertNotIn("Who", kept)  # and no word of a conversation
            self.assertEqual(page.evaluate("sessionStorage.length"), 1)

    def test_several_keys_see_their_own_hour(self):
        with Server(*SMALL, "--api-key", "secret-1", "--api-key", "secret-2") as own:
            context = self.browser.new_context()
            self.addCleanup(context.close)
            page = context.new_page()
            page.goto(own.url + "/")
            page.locator("#key").fill("secret-2")
            page.locator("#key").press("Enter")
            self.ask(page, "Who are you?")
            page.locator("#show-cache").click()
            expect(page.locator("#hour-text")).to_contain_text("in 1 answer were")
            expect(page.locator("#blocks-text")).to_contain_text("shown to the operator")
            expect(page.locator("#disk-section")).to_be_hidden()

    def test_a_phone_needs_no_scrolling_to_the_side(self):
        with Server(*SMALL) as own:
            page = self.open(own.url, viewport={"width": 360, "height": 640}, has_touch=True)
            self.begin(page, "word " * 40 + "x" * 300)
            for _ in range(2):
                width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                self.assertLessEqual(width[0], width[1])
                page.locator("#show-cache").tap()
            page.screenshot(path=SHOTS / "phone.png")

    def test_a_phone_shows_the_end_of_the_last_answer(self):
        with Server(*SMALL) as own:
            page = self.open(own.url, viewport={"width": 360, "height": 640}, has_touch=True)
            self.begin(page)
            for _ in range(3):
                self.ask(page, "What is the code of the green safe?")
                expect(page.locator("article.assistant .body").last).to_be_in_viewport()
                expect(page.locator("#send")).to_be_in_viewport()

    def test_a_phone_shows_that_the_server_is_gone(self):
        with Server(*SMALL) as own:
            page = self.open(own.url, viewport={"width": 360, "height": 640}, has_touch=True)
            self.begin(page, "word " * 300)
            own.process.kill()
            own.process.wait()
            page.locator("#text").fill("Are you there?")
            page.locator("#text").press("Enter")
            expect(page.locator("#error-text")).to_contain_text("The server does not answer")
            for name in ("#error", "#text", "#send"):
                expect(page.locator(name)).to_be_in_viewport(ratio=1)
            expect(page.locator("#text")).to_have_value("Are you there?")
            expect(page.locator("article")).to_have_count(3)

    def test_thoughts_are_folded(self):
        template = ("{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}"
                    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}{# </think> #}")
        with Server(*SMALL, "--chat-template", template) as own:
            page = self.open(own.url)
            self.ask(page, "Who are you?")  # the bundled model never closes the thought
            expect(page.locator("article.assistant .body")).to_be_empty()
            expect(page.locator("article.assistant .fold p")).not_to_be_empty()
            expect(page.locator("article.assistant .fold p")).to_be_hidden()
            page.locator("article.assistant summary").click()
            expect(page.locator("article.assistant .fold p")).to_be_visible()
            self.assertEqual(self.said, [])


if __name__ == "__main__":
    main()
