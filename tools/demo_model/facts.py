"""Facts made on the fly from word lists and a seed: what a conversation is about.

A Fact can be stated, asked for and answered in several forms; a World draws facts that do not
contradict each other.
"""
from dataclasses import dataclass, field

NAMES = """Anna Tarik Mira Jonas Lena Omar Ines Pavel Rosa Emil Nora Hugo Clara Ivan Leila Oskar Maya
Felix Sara Viktor Elena Samir Greta Mateo Alma Bruno Dalia Erik Fatima Goran Hana Igor Julia Kofi
Lucia Marek Nadia Otto Petra Quinn Rami Selma Tomas Uma Vera Wanda Yara Zoe""".split()
CITIES = """Oslo Lima Cairo Paris Rome Tokyo Delhi Quito Berlin Madrid Vienna Prague Dublin Athens
Warsaw Lisbon Nairobi Seoul Hanoi Havana Tunis Riga Bergen Porto Dakar Turin Geneva Boston""".split()
JOBS = """baker pilot nurse teacher sailor farmer painter doctor lawyer tailor gardener cook driver
singer writer builder plumber dentist judge miner potter clerk fisher dancer""".split()
COLOURS = "red blue green yellow white black brown grey pink purple orange golden".split()
MATERIALS = """brass iron wooden silver paper glass stone copper old new small large heavy round
broken little silk plastic clean leather""".split()
THINGS = """key lamp book map coin ring clock cup bell knife letter hat spoon rope mirror candle
flute ticket stamp brush hammer button shell ball""".split()
CONTAINERS = "drawer box bag basket cupboard chest jar bucket trunk cabinet suitcase barrel".split()
LOCKED = "safe gate door tower locker vault office garage cellar bicycle".split()
TOPICS = """budget garden music school water chess history harbour morning winter market bread
travel summer evening safety""".split()
EVENTS = "meeting lesson party lecture walk game concert dinner".split()
GOODS = "scarf chair table coat carpet kettle shirt pillow blanket guitar plate radio".split()
OWNED = "coat car boat house bicycle umbrella tent sofa".split()
FOODS = """soup rice bread cheese fish pasta honey cake salad beans plums pears apples grapes nuts
carrots onions eggs""".split()
PLURALS = "apples pears plums eggs nuts coins books pens cups stamps buttons candles".split()
KIN = "sister brother teacher friend boss neighbour uncle cousin".split()
PETS = "cat dog horse parrot boat rabbit goat bear".split()
FAVOURITES = "colour food city book song game".split()
MONTHS = """January February March April May June July August September October November
December""".split()
SKIES = "sun rain snow fog wind clouds storm frost".split()


ONSETS = "b br c d dr f g gr h j k kl l m n p pl r s st t tr v w z sh th".split()
VOWELS = "a e i o u a e i o ai ea".split()
CODAS = ["", "", "", "n", "r", "l", "s", "k", "m", "t", "nd"]


def invented(rng, low=2, high=3):
    """A made-up lower-case word such as "brenal": it can be copied but not guessed."""
    n = rng.randint(low, high)
    word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if i == n - 1
                   or rng.random() < 0.25 else "") for i in range(n))
    return word


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


@dataclass
class Fact:
    kind: str
    key: str                    # who or what is asked about, with its attribute: unique in a world
    statements: list
    questions: list
    lead: str                   # the answer up to the value
    value: str
    updates: list = field(default_factory=list)
    follow: str = ""            # "And Anna?" after a question of the same kind
    reverse: tuple = ()         # question and lead of the answer when asked by the value
    name: str = ""              # whom the reverse question asks for
    tail: str = ""              # after the value
    blank: str = "something I do not know"
    before: str = ""            # between lead and value: "the " in "in the red box"

    @property
    def answer(self):
        return sentence(f"{self.lead} {self.before}{self.value}{self.tail}.")

    @property
    def unknown(self):
        return sentence(f"{self.lead} {self.blank}.")


class World:
    """Draws facts whose keys do not collide; `near` picks keys that look alike."""

    def __init__(self, rng, invent=0.35):
        self.rng, self.invent = rng, invent
        self.keys = {}
        self.asked = set()          # keys already asked for
        self.updated = set()        # keys with more than one value so far
        self.retired = set()        # (kind, value) that an update replaced
        r = rng
        self.names = [self._name() for _ in range(12)]
        self.materials = r.sample(MATERIALS, 8)
        self.things = r.sample(THINGS, 8)

    def _name(self):
        if self.rng.random() < self.invent:
            return invented(self.rng).capitalize()
        return self.rng.choice(NAMES)

    def name(self):
        return self.rng.choice(self.names) if self.rng.random() < 0.7 else self._name()

    def city(self):
        if self.rng.random() < self.invent:
            return invented(self.rng).capitalize()
        return self.rng.choice(CITIES)

    def number(self, digits):
        return str(self.rng.randrange(10 ** (digits - 1), 10 ** digits))

    def thing(self):
        r = self.rng
        if r.random() < 0.12:
            return r.choice(self.materials) + " " + invented(r)
        return r.choice(self.materials) + " " + r.choice(self.things)

    def draw(self, kind):
        """A Fact of this kind with fresh words; not yet part of the world."""
        return getattr(self, "_" + kind)()

    def fresh(self, kind):
        """A Fact whose key is not used yet, or None when that is hard to find."""
        for _ in range(8):
            f = self.draw(kind)
            if f.key not in self.keys:
                return f
        return None

    def add(self, kind):
        f = self.fresh(kind)
        if f is not None:
            self.keys[f.key] = f
        return f

    def renew(self, old):
        """The same key with another value."""
        for _ in range(8):
            f = self._remake(old)
            if f.value != old.value:
                self.retired.add((old.kind, old.value))
                self.asked.discard(f.key)
                self.keys[f.key] = f
                return f
        return None

    def _remake(self, old):
        return getattr(self, "_" + old.kind)(old.key)

    # Each maker takes a key (to give it a new value) or draws one.
    def _place(self, key=None):
        r = self.rng
        s = key or "the " + self.thing()
        v = r.choice(COLOURS) + " " + r.choice(CONTAINERS)
        return Fact("place", s, [f"{s} is in the {v}.", f"I put {s} in the {v}.", f"{s} is in the {v}."],
                    [f"where is {s}?", f"where can I find {s}?", f"where is {s}?"],
                    f"{s} is in", v,
                    [f"{s} is now in the {v}.", f"{s} was moved to the {v}."], f"and {s}?",
                    before="the ", blank="a place I do not know")

    def _code(self, key=None):
        r = self.rng
        s = key or "the code of the " + r.choice(COLOURS) + " " + r.choice(LOCKED)
        v = self.number(4)
        return Fact("code", s, [f"{s} is {v}."], [f"what is {s}?", f"tell me {s}."], f"{s} is", v,
                    [f"{s} is now {v}.", f"{s} was changed to {v}."], f"and {s}?")

    def _password(self, key=None):
        r = self.rng
        s = key or r.choice(["the password of the ", "the secret word of the "]) + (
            r.choice(COLOURS) + " " + r.choice(LOCKED))
        v = invented(r)
        return Fact("password", s, [f"{s} is {v}."], [f"what is {s}?", f"tell me {s}."],
                    f"{s} is", v, [f"{s} is now {v}.", f"{s} was changed to {v}."], f"and {s}?")

    def _secret(self, key=None):
        r = self.rng
        s = key or r.choice(["the secret word", "the password", "the magic word"])
        v = invented(r)
        return Fact("secret", s, [f"{s} is {v}."], [f"what is {s}?", f"tell me {s}."],
                    f"{s} is", v, [f"{s} is now {v}.", f"{s} was changed to {v}."])

    def _city(self, key=None):
        s = (key or "city " + self.name())[5:]
        v = self.city()
        return Fact("city", "city " + s, [f"{s} lives in {v}.", f"{s} has a house in {v}.", f"{s} lives in {v}."],
                    [f"where does {s} live?", f"in which city does {s} live?", f"where does {s} live?"],
                    f"the home of {s} is in", v,
                    [f"{s} now lives in {v}.", f"{s} moved to {v}."], f"and {s}?",
                    (f"who lives in {v}?", f"the one who lives in {v} is"), s,
                    blank="a place I do not know")

    def _job(self, key=None):
        s = (key or "job " + self.name())[4:]
        v = self.rng.choice(JOBS)
        return Fact("job", "job " + s, [f"{s} works as {article(v)}.", f"{s} is {article(v)}."],
                    [f"what is the job of {s}?", f"what does {s} do?"],
                    f"the job of {s} is", v,
                    [f"{s} now works as {article(v)}."], f"and {s}?",
                    (f"who works as {article(v)}?", f"the one who works as {article(v)} is"), s)

    def _time(self, key=None):
        r = self.rng
        s = key or "the " + r.choice(TOPICS) + " " + r.choice(EVENTS)
        s = s.removesuffix(" time")
        v = f"{r.randint(7, 22)}:{r.choice((0, 15, 30, 45, r.randint(1, 59))):02d}"
        return Fact("time", s + " time", [f"{s} is at {v}.", f"{s} starts at {v}."],
                    [f"when is {s}?", f"when does {s} start?"], f"{s} is at", v,
                    [f"{s} is now at {v}.", f"{s} was moved to {v}."], f"and {s}?",
                    blank="a time I do not know")

    def _room(self, key=None):
        r = self.rng
        s = key or "the " + r.choice(TOPICS) + " " + r.choice(EVENTS)
        s = s.removesuffix(" room")
        v = str(r.randint(2, 399))
        return Fact("room", s + " room", [f"{s} is in room {v}."],
                    [f"in which room is {s}?", f"which room has {s}?"], f"{s} is in", v,
                    [f"{s} is now in room {v}.", f"{s} was moved to room {v}."], f"and {s}?",
                    before="room ", blank="a room I do not know")

    def _price(self, key=None):
        r = self.rng
        s = key or "the " + r.choice(MATERIALS + COLOURS) + " " + r.choice(GOODS)
        v = str(r.randint(2, 999))
        return Fact("price", s, [f"{s} costs {v} crowns.", f"the price of {s} is {v} crowns."],
                    [f"how much is {s}?", f"what does {s} cost?"], f"the price of {s} is", v,
                    [f"{s} now costs {v} crowns."], f"and {s}?", tail=" crowns")

    def _food(self, key=None):
        s = (key or "food " + self.name())[5:]
        v = self.rng.choice(FOODS)
        return Fact("food", "food " + s, [f"the favourite food of {s} is {v}.", f"{s} likes {v}."],
                    [f"what is the favourite food of {s}?", f"what does {s} like?"],
                    f"the favourite food of {s} is", v, [f"{s} now likes {v}."], f"and {s}?",
                    (f"who likes {v}?", f"the one who likes {v} is"), s)

    def _colour(self, key=None):
        r = self.rng
        s = key or "the " + r.choice(OWNED) + " of " + self.name()
        v = r.choice(COLOURS)
        return Fact("colour", s, [f"{s} is {v}."], [f"what colour is {s}?", f"which colour has {s}?"],
                    f"{s} is", v, [f"{s} is now {v}."], f"and {s}?", blank="of a colour I do not know")

    def _birthday(self, key=None):
        r = self.rng
        s = key or "the birthday of " + self.name()
        v = f"{r.randint(1, 28)} {r.choice(MONTHS)}"
        return Fact("birthday", s, [f"{s} is on {v}."], [f"when is {s}?"], f"{s} is on", v,
                    [], f"and {s}?", blank="a day I do not know")

    def _kin(self, key=None):
        r = self.rng
        s = key or "the " + r.choice(KIN) + " of " + self.name()
        v = self.name()
        return Fact("kin", s, [f"{s} is {v}.", f"{s} is called {v}."], [f"who is {s}?", f"what is the name of {s}?"],
                    f"{s} is", v, [f"{s} is now {v}."], f"and {s}?", blank="somebody I do not know")

    def _owner(self, key=None):
        s = (key or "owner the " + self.thing())[6:]
        v = self.name()
        return Fact("owner", "owner " + s, [f"{s} belongs to {v}.", f"{v} owns {s}."],
                    [f"who owns {s}?", f"to whom does {s} belong?"], f"{s} belongs to", v,
                    [f"{s} now belongs to {v}."], f"and {s}?", blank="somebody I do not know")

    def _capital(self, key=None):
        r = self.rng
        s = key or "the capital of " + invented(r).capitalize()
        v = invented(r).capitalize()
        return Fact("capital", s, [f"{s} is {v}."], [f"what is {s}?"], f"{s} is", v,
                    [f"{s} is now {v}."], f"and {s}?")

    def _count(self, key=None):
        r = self.rng
        if key:
            goods, box = key[7:].split(" in ")
        else:
            goods, box = r.choice(PLURALS), "the " + r.choice(COLOURS) + " " + r.choice(CONTAINERS)
        v = str(r.randint(2, 99))
        return Fact("count", f"number {goods} in {box}", [f"there are {v} {goods} in {box}."],
                    [f"how many {goods} are in {box}?"], f"the number of {goods} in {box} is", v,
                    [f"now there are {v} {goods} in {box}."])

    def _myname(self, key=None):
        v = self._name()
        return Fact("myname", "my name", [f"my name is {v}.", f"I am {v}."],
                    ["what is my name?", "who am I?", "do you remember my name?"],
                    "your name is", v, [f"my name is now {v}."])

    def _mypet(self, key=None):
        r = self.rng
        s = key or "my " + (r.choice(PETS) if r.random() < 0.8 else invented(r))
        v = self._name()
        return Fact("mypet", s, [f"{s} is called {v}.", f"the name of {s} is {v}."],
                    [f"what is {s} called?", f"what is the name of {s}?"],
                    f"your {s[3:]} is called", v, [f"{s} is now called {v}."], f"and {s}?")

    def _mycity(self, key=None):
        v = self.city()
        return Fact("mycity", "my city", [f"I live in {v}.", f"my home is in {v}."],
                    ["where do I live?", "in which city do I live?"], "your home is in", v,
                    [f"I now live in {v}.", f"I moved to {v}."], blank="a place I do not know")

    def _mybest(self, key=None):
        r = self.rng
        s = key or "my favourite " + r.choice(FAVOURITES)
        v = {"colour": lambda: r.choice(COLOURS), "food": lambda: r.choice(FOODS),
             "city": self.city}.get(s[13:], lambda: invented(r))()
        return Fact("mybest", s, [f"{s} is {v}."], [f"what is {s}?"], f"your {s[3:]} is", v,
                    [f"{s} is now {v}."], f"and {s}?")


KINDS = {"place": 5, "code": 4, "password": 3, "secret": 1, "city": 4, "job": 2.5, "time": 3, "room": 1.5,
         "price": 2, "food": 1.5, "colour": 1.5, "birthday": 1, "kin": 1.5, "owner": 2, "capital": 1.5,
         "count": 1.5, "myname": 1.2, "mypet": 1.5, "mycity": 0.7, "mybest": 1.2}
EASY = {"place": 1, "code": 1, "city": 1, "password": 1}


def sentence(text):
    return text[0].upper() + text[1:]
