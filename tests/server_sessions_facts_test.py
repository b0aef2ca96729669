#!/usr/bin/env python3
"""The bundled model answers from a fact in a session, and says that it does not know once it is forgotten.

    server_sessions_facts_test.py [KVASIR_BINARY]
"""

import random
import sys
import unittest

from server_harness import Server, user

COLOURS = "green red blue yellow black white brown grey pink orange golden silver".split()
LOCKED = "safe locker vault garage tower cellar gate door".split()
NAMES = "Anna Tarik Mira Jonas Elena Pavel Greta Igor Rami Ines Hana Sara Felix Uma Dalia Mateo".split()
CITIES = "Oslo Porto Prague Bergen Hanoi Delhi Boston Athens Dublin Lisbon".split()
NUM_FACTS = 100
IN_A_SESSION = 4  # as many as the shortest contexts of the model's training have


def one_fact(rng, kind):
    """(key, statement, question, value)"""
    if kind == "code":
        key = f"the code of the {rng.choice(COLOURS)} {rng.choice(LOCKED)}"
        value = str(rng.randint(1000, 9999))
        return key, f"The {key[4:]} is {value}.", f"What is {key}?", value
    if kind == "city":
        name, city = rng.choice(NAMES), rng.choice(CITIES)
        return f"city {name}", f"{name} lives in {city}.", f"Where does {name} live?", city
    if kind == "password":
        key = f"the password of the {rng.choice(COLOURS)} {rng.choice(LOCKED)}"
        value = "".join(rng.choice(s) for s in ("bdfgkl", "aeiou", "mnprst", "aeiou", "nlrs"))
        return key, f"The {key[4:]} is {value}.", f"What is {key}?", value
    key = f"the {rng.choice(COLOURS)} key"
    value = f"{rng.choice(COLOURS)} box"
    return key, f"{key[0].upper() + key[1:]} is in the {value}.", f"Where is {key}?", value


def facts_of_a_session(rng):
    facts, keys, values = [], set(), set()
    while len(facts) < IN_A_SESSION:
        fact = one_fact(rng, ("code", "city", "password", "place")[len(facts) % 4])
        if fact[0] not in keys and fact[3] not in values:
            facts.append(fact)
            keys.add(fact[0])
            values.add(fact[3])
    return facts


def contents_of(facts):
    """The text of the system message and its segments."""
    text, segments = "You are Kvasir. These are the facts:", []
    for i, (_, statement, _, _) in enumerate(facts):
        segments.append({"name": f"fact{i}", "begin": len(text), "end": len(text) + 1 + len(statement)})
        text += " " + statement
    return text, segments


class FactsTest(unittest.TestCase):
    def call(self, method, path, body=None):
        status, _, answer = self.server.request(method, path, body)
        self.assertIn(status, (200, 201), answer)
        return answer

    def ask(self, path, question):
        """In a fork: no later turn has the answer."""
        fork = "/v1/sessions/" + self.call("POST", path + "/fork", {})["id"]
        answer = self.call("POST", fork + "/generate", {"messages": user(question)})
        self.call("DELETE", fork)
        return answer["choices"][0]["message"]["content"]

    def test_a_forgotten_fact_is_not_known(self):
        rng = random.Random(19)
        answered = said_unknown = asked = 0
        with Server() as self.server:
            while answered < NUM_FACTS:
                facts = facts_of_a_session(rng)
                text, segments = contents_of(facts)
                path = "/v1/sessions/" + self.call("POST", "/v1/sessions", {
                    "sampling": {"temperature": 0, "max_tokens": 40},
                    "messages": [{"role": "system", "content": text, "segments": segments}]})["id"]
                for i, (_, statement, question, value) in enumerate(facts):
                    if answered == NUM_FACTS:
                        break
                    asked += 1
                    if value not in self.ask(path, question):
                        continue
                    answered += 1
                    forgotten = self.call("POST", path + "/forget", {"segment": f"fact{i}"})
                    self.assertGreater(forgotten["erased_tokens"], 0)
                    answer = self.ask(path, question)
                    said_unknown += "do not know" in answer
                    self.assertNotIn(value, answer)
                    self.assertNotIn(statement, str(self.call("GET", path)))
                self.call("DELETE", path)
            log = "".join(self.server.log)
        print(f"{asked} facts asked, {answered} answered; forgotten: {said_unknown} said not to be known",
              file=sys.stderr)
        self.assertLess(asked, NUM_FACTS * 5 // 4, "the model answers too few")
        self.assertEqual(said_unknown, NUM_FACTS)
        self.assertNotIn("lives in", log)


if __name__ == "__main__":
    unittest.main()
