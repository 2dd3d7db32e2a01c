"""Who speaks: voices to train with, and voices kept for tests alone."""

from __future__ import annotations

import random

from demo.synthesizers import FLITE_VOICES, Voice

ACCENTS = (
    "gmw/en",
    "gmw/en-US",
    "gmw/en-GB-x-rp",
    "gmw/en-GB-x-gbclan",
    "gmw/en-GB-x-gbcwmd",
    "gmw/en-029",
    "gmw/en-US-nyc",
)
NEW_ACCENT = "gmw/en-GB-scotland"

# espeak-ng's variants of a voice, without whispers, croaks and robots.
NEW_VARIANTS = (
    "f2", "m4", "Andrea", "Mike", "belinda", "edward", "klatt3", "steph2", "pablo", "Nguyen",
    "linda", "travis",
)  # fmt: skip
VARIANTS = (
    "", "Alex", "Alicia", "Andy", "Annie", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo",
    "Jacky", "Lee", "Marco", "Mario", "Michael", "RicishayMax", "RicishayMax2", "RicishayMax3",
    "adam", "anika", "announcer", "antonio", "aunty", "benjamin", "boris", "caleb", "david", "ed",
    "edward2", "f1", "f3", "f4", "f5", "grandma", "grandpa", "gustave", "iven", "iven2", "iven3",
    "iven4", "john", "kaukovalta", "klatt", "klatt2", "klatt4", "klatt5", "klatt6", "m1", "m2",
    "m3", "m5", "m6", "m7", "m8", "marcelo", "max", "michel", "miguel", "norbert", "paul",
    "pedro", "quincy", "rob", "robert", "sandro", "shelby", "steph", "steph3", "victor", "zac",
)  # fmt: skip
# kal_diphone is made of the recordings that flite's cmu_us_kal16 has; this one is not.
NEW_SYNTHESIZER = Voice("festival", "ked_diphone")


def training_voice(rng: random.Random, spread: float) -> Voice:
    """Three in four of espeak-ng, each faster or slower, higher or lower than its own.

    Args:
        spread: 0 for the voices' own rates and pitches, 1 for the widest range of both.
    """
    rate = 1 + spread * rng.uniform(-0.25, 0.4)
    pitch = 1 + spread * rng.uniform(-0.4, 0.5)
    if rng.random() < 0.25:
        return Voice("flite", rng.choice(FLITE_VOICES), rate, pitch)
    return espeak(rng.choice(ACCENTS), rng.choice(VARIANTS), rate, pitch)


def espeak(accent: str, variant: str, rate: float = 1.0, pitch: float = 1.0) -> Voice:
    """A voice of espeak-ng."""
    return Voice("espeak", f"{accent}+{variant}" if variant else accent, rate, pitch)
