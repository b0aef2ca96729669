#!/usr/bin/env python3
"""The page while calls wait: an action stays in its conversation when another one is opened, the conversation that was
asked for last is the one that opens, and the view of the cache asks again only after an answer."""

from page_browser import BrowserTest, FakeServer, expect, main

# Each action on the conversation A: its button, the call that is held back, and the answer of that call.
ACTIONS = [("Regenerate message 1", "truncate", {}), ("Edit message 0", "messages/0", {}),
           ("Edit message 1", "messages/1", {}), ("Forget message 0", "forget", {"erased_blocks": 1, "erased_tokens": 16}),
           ("Fork message 0", "fork", {"id": "sess_" + 32 * "e"})]


class Switch(BrowserTest):
    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.stop)
        self.server.deltas = [{"content": "Anew."}]

    def conversation(self, name):
        return self.server.add_session([{"role": "user", "content": f"Question {name}"},
                                        {"role": "assistant", "content": f"Answer {name}", "generated": True}], title=name)

    def hold(self, page, url, **options):
        """Keeps calls of `url` unanswered: those that came."""
        held = []
        page.route(url, lambda route: held.append(route), **options)
        return held

    def until(self, page, held, count=1):
        for _ in range(600):
            if len(held) >= count:
                return
            page.wait_for_timeout(100)
        self.fail(f"{len(held)} calls came, not {count}")

    def choose(self, page, name):
        page.locator("#sessions").get_by_role("button", name=name, exact=True).click()

    def shows(self, page, name):
        """The whole conversation is there, and stays so."""
        expect(page.locator("article.user .body")).to_have_text([f"Question {name}"])
        page.wait_for_timeout(300)
        self.assertEqual(page.locator("article .body").all_inner_texts(), [f"Question {name}", f"Answer {name}"])

    def test_an_action_does_not_go_on_in_another_conversation(self):
        first, second = self.conversation("A"), self.conversation("B")
        for name, path, answer in ACTIONS:
            with self.subTest(name):
                page = self.open(self.server.url, "/#" + first)
                self.shows(page, "A")
                held = self.hold(page, f"**/{first}/{path}")
                page.get_by_role("button", name=name).click()
                if "Edit" in name:
                    page.locator(".edit .main").click()
                self.until(page, held)
                self.choose(page, "B")
                self.shows(page, "B")
                after = []
                page.on("request", lambda request, after=after: after.append(request) if request.method != "GET" else None)
                held[0].fulfill(json=answer)
                self.shows(page, "B")
                self.assertEqual([request.url for request in after], [])
                self.assertTrue(page.url.endswith("#" + second), page.url)
                expect(page.locator("#note")).to_be_hidden()
                expect(page.locator("#stop")).to_be_hidden()
                self.assertEqual(self.said, [])

    def test_a_question_stays_in_the_box_when_another_conversation_is_opened(self):
        self.conversation("A")
        page = self.open(self.server.url)
        held = self.hold(page, "**/v1/sessions")
        page.locator("#text").fill("Where is Oslo?")
        page.locator("#text").press("Enter")
        self.until(page, held)
        self.choose(page, "A")
        self.shows(page, "A")
        made = "sess_" + 32 * "d"
        deleted = self.hold(page, f"**/{made}")
        held[0].fulfill(json={"id": made}, status=201)
        self.until(page, deleted)  # the one that was made for the question goes
        self.assertEqual(deleted[0].request.method, "DELETE")
        deleted[0].fulfill(json={})
        self.shows(page, "A")
        expect(page.locator("#text")).to_have_value("Where is Oslo?")
        self.assertEqual(self.said, [])

    def test_the_conversation_that_was_asked_for_last_opens(self):
        first, second = self.conversation("A"), self.conversation("B")
        page = self.open(self.server.url)
        held = self.hold(page, f"**/{second}")
        self.choose(page, "B")
        self.until(page, held)
        self.choose(page, "A")
        self.shows(page, "A")
        held[0].continue_()
        self.shows(page, "A")
        self.assertTrue(page.url.endswith("#" + first), page.url)
        # An answer that began while a conversation was on its way ends as that one opens.
        self.choose(page, "B")
        self.until(page, held, 2)
        self.server.deltas, self.server.pause_s = [{"content": "word "}] * 1000, 0.05
        page.locator("#text").fill("Go on.")
        page.locator("#text").press("Enter")
        expect(page.locator("#stop")).to_be_visible()
        held[1].continue_()
        self.shows(page, "B")
        expect(page.locator("#stop")).to_be_hidden()
        self.assertEqual(self.said, [])

    def test_back_closes_the_settings_of_the_conversation_before(self):
        self.conversation("A")
        self.conversation("B")
        page = self.open(self.server.url)
        self.choose(page, "A")
        self.shows(page, "A")
        self.choose(page, "B")
        self.shows(page, "B")
        page.locator("#show-settings").click()
        page.locator("#system").fill("You are B.")
        page.go_back()
        self.shows(page, "A")
        expect(page.locator("#settings")).to_be_hidden()
        page.locator("#show-settings").click()
        expect(page.locator("#system")).to_have_value("")
        self.assertEqual(self.said, [])

    def test_a_conversation_that_is_gone_is_said_so_and_an_empty_one_opens(self):
        gone = "This conversation was deleted or is on another server. Choose another one, or begin a new one."
        first, second = self.conversation("A"), self.conversation("B")
        page = self.open(self.server.url, "/#sess_" + 32 * "f")
        expect(page.locator("#error-text")).to_have_text(gone)
        expect(page.locator("#welcome")).to_be_visible()
        self.assertNotIn("#", page.url)
        self.choose(page, "A")
        self.shows(page, "A")
        expect(page.locator("#error")).to_be_hidden()
        del self.server.sessions[second]
        self.choose(page, "B")  # the list still has it
        expect(page.locator("#error-text")).to_have_text(gone)
        expect(page.locator("#welcome")).to_be_visible()
        expect(page.locator("#sessions li")).to_have_count(1)
        page.go_back()
        self.shows(page, "A")
        self.assertTrue(page.url.endswith("#" + first), page.url)
        del self.server.sessions[first]
        page.locator("#text").fill("Are you there?")
        page.locator("#text").press("Enter")
        expect(page.locator("#error-text")).to_have_text(gone)

    def fail_after_the_question(self, page, failure):
        """The server keeps the first question and a part of its answer, which ends with `failure`, and does not answer the
        next call. Returns the methods of the calls for the conversation from then on."""
        seen = []

        def generate(route):
            (one,) = self.server.sessions.values()
            one["messages"] = [{"index": 0, "role": "user", "content": "Question A"},
                               {"index": 1, "role": "assistant", "content": "Half of"}]
            seen.append("generate")
            route.fulfill(**failure)

        def answer(route):
            if seen:
                seen.append(route.request.method)
            if seen == ["generate", "GET"] or route.request.method == "DELETE":
                return route.fulfill(json={"error": {"message": "Busy"}}, status=500)
            return route.continue_()
        page.route("**/generate", generate)
        page.route("**/v1/sessions/sess_*", answer)
        return seen

    def test_a_question_that_the_server_has_kept_is_never_removed(self):
        """An answer fails in its middle, and so does the call that reads what was kept of it."""
        failures = [{"body": 'data: {"choices":[{"delta":{"content":"Half of"}}]}\n\ndata: {"error":{"message":"No disk"}}\n\n',
                     "content_type": "text/event-stream"},
                    {"body": "not JSON", "status": 500}]
        for failure in failures:
            with self.subTest(failure):
                self.server.sessions.clear()
                page = self.open(self.server.url)
                seen = self.fail_after_the_question(page, failure)
                page.locator("#text").fill("Question A")
                page.locator("#text").press("Enter")
                expect(page.locator("#error-text")).to_have_text("Busy")
                self.assertEqual(seen, ["generate", "GET", "GET"])
                expect(page.locator("#sessions li")).to_have_count(1)
                self.assertIn("#sess_", page.url)

    def test_a_conversation_that_cannot_be_read_leaves_the_list_and_the_address(self):
        first = self.conversation("A")
        page = self.open(self.server.url)
        page.route(f"**/{first}", lambda route: route.fulfill(json={"error": {"message": "damaged"}}, status=500))
        page.goto(f"{self.server.url}/#{first}")
        page.reload()
        expect(page.locator("#error-text")).to_have_text("damaged")
        expect(page.locator("#sessions li")).to_have_count(1)
        self.assertTrue(page.url.endswith("#" + first), page.url)

    def test_the_view_of_the_cache_asks_again_after_an_answer_only(self):
        page = self.open(self.server.url)
        held = self.hold(page, "**/v1/cache")
        page.locator("#show-cache").click()
        self.until(page, held)
        page.wait_for_timeout(4500)
        self.assertEqual(len(held), 1)
        held[0].continue_()
        expect(page.locator("#prefixes li")).to_have_count(3)
        self.until(page, held, 2)
        page.locator("#show-cache").click()
        held[1].continue_()
        page.wait_for_timeout(2500)
        self.assertEqual(len(held), 2)
        self.assertEqual(self.said, [])


if __name__ == "__main__":
    main()
