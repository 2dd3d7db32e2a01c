"""What the demo model understands: its words, its sentences, and the tokens they are made of.

Half of the sentences follow a small grammar, as people speak to a machine; half are words in
any order, so that the model has to hear and cannot guess.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from itertools import pairwise

ONES = "one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTHS = (
    "january february march april may june july august september october november december"
).split()
COLORS = "red green blue yellow white black orange purple".split()
ROOMS = "kitchen bedroom garden garage office cellar bathroom".split()
DEVICES = "light lamp heater fan door window radio camera computer curtain oven printer".split()
SOUNDS = "music radio television volume".split()
PEOPLE = "alice david maria peter susan robert doctor police mother father".split()
THINGS = "message picture video letter number list map ticket calendar".split()
TIMES = "morning evening night today tomorrow".split()
VERBS = (
    "start stop open close show find send call delete cancel repeat record pause save print"
).split()
MOVES = "up down left back forward north south east west".split()
SMALL = "zero hundred thousand and at in on off the my please now yes hello alpha bravo".split()
OTHERS = (
    "turn set play louder quiet timer alarm weather minutes hours percent degrees go from half "
    "water coffee train station airport market hotel street river mountain snow"
).split()

WORDS = tuple(
    sorted(
        {
            *ONES, *TEENS, *TENS, *DAYS, *MONTHS, *COLORS, *ROOMS, *DEVICES, *SOUNDS, *PEOPLE,
            *THINGS, *TIMES, *VERBS, *MOVES, *SMALL, *OTHERS,
        }
    )
)  # fmt: skip

# `a|b` is a choice between words, <name> between the entries of the table below.
_TEMPLATES = (
    "turn on|off the <room> <device>",
    "turn the <device> in the <room> on|off",
    "turn the <sounds> up|down",
    "set the <room> <device> at <number> percent",
    "set the heater at <number> degrees",
    "set the <device> <color>",
    "set my alarm at <number> <tens> <day> morning|evening",
    "start|stop|cancel the timer",
    "set my timer at <number> minutes|hours",
    "call <person> now",
    "call <person> <day> at <ones>",
    "send my message from <person> now please",
    "open|close the <device> in the <room>",
    "open|close the <color> door",
    "show my calendar from <month> <teens>",
    "show the picture from <person> and <person>",
    "play the <sounds> louder|quiet please",
    "play music in the <room>",
    "go <move> and <move>",
    "go left now and stop at the <place>",
    "find the train from the <place>",
    "delete|save|print|record my <thing>",
    "<month> <teens> <tens> <ones>",
    "<ones> hundred and <tens> <ones>",
    "<ones> thousand <ones> hundred",
    "<digit> <digit> <digit> <digit>",
    "<digit> <digit> <digit> <digit> <digit> <digit> <digit>",
    "the weather <time> in the <place> please",
    "hello <person>",
    "yes please",
)
_TABLE = {
    "room": ROOMS,
    "device": DEVICES,
    "sounds": SOUNDS,
    "number": ONES[1:] + TEENS + TENS,
    "tens": TENS,
    "teens": TEENS,
    "ones": ONES,
    "digit": ["zero", *ONES],
    "color": COLORS,
    "day": DAYS,
    "month": MONTHS,
    "person": PEOPLE,
    "move": MOVES,
    "place": "station airport market hotel street river mountain".split(),
    "thing": THINGS,
    "time": TIMES,
}
LONGEST = 12


def sentence(rng: random.Random) -> list[str]:
    """1 to 12 words: half by the grammar, half in any order, in every length."""
    if rng.random() < 0.5:
        return [_choose(rng, part) for part in rng.choice(_TEMPLATES).split()]
    return rng.choices(WORDS, k=1 + int(LONGEST * rng.random() ** 1.3))


def _choose(rng: random.Random, part: str) -> str:
    return rng.choice(_TABLE[part[1:-1]] if part[0] == "<" else part.split("|"))


def held_out(words: list[str]) -> bool:
    """Whether a sentence is for tests alone: one in ten by its hash, from three words on.

    With fewer words there are too few sentences to keep any of them from the training.
    """
    if len(words) < 3:
        return False
    return hashlib.sha256(" ".join(words).encode()).digest()[0] < 26


def merges(count: int) -> list[bytes]:
    """Byte-pair encoding of the words as the sentences have them, each after a space.

    Source: Sennrich et al. (2016). Ties go to the pair that comes first in the alphabet.

    Returns:
        `count` pieces, the first merged first.
    """
    rng = random.Random(0)
    seen = Counter(word for _ in range(4000) for word in sentence(rng))
    texts = {word: tuple(bytes([b]) for b in f" {word}".encode()) for word in WORDS}
    pieces: list[bytes] = []
    while len(pieces) < count:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, parts in texts.items():
            for pair in pairwise(parts):
                pairs[pair] += seen[word] + 1
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        pieces.append(best[0] + best[1])
        texts = {word: _merge(parts, best) for word, parts in texts.items()}
    return pieces


def _merge(parts: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    merged: list[bytes] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return tuple(merged)
