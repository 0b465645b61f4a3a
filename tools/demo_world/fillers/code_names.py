"""Names of variables and functions."""

from __future__ import annotations

import random

from tools.demo_world.draw import Pool, words_of
from tools.demo_world.fillers.invented import invented_word

WORDS = words_of("""
    count total value item name index size limit score price amount width height length number result data text line
    word key node rate speed level depth weight age year month day hour point color user group order row column cell
    page path file token step offset start end left right first last average minimum maximum message label title
    flag state mode target source buffer queue stack cache table record field entry balance budget cost tax discount
    factor ratio angle radius area volume distance time delay timeout error status code answer guess player card
    deck turn round team goal shot track song note chord beat pixel image frame scene letter digit prefix suffix
    query reply
    """)
VERBS = words_of("""
    get set make find count add compute build check read write load save update remove print parse format convert
    clean sort filter merge split join scale shift apply reset measure estimate select collect handle process
    """)


def invented_variable(rng: random.Random) -> str:
    """Such as "price_total" or "brela_count"."""
    if rng.random() < 0.4:
        return invented_word(rng, 2, 3)
    first = rng.choice(WORDS) if rng.random() < 0.7 else invented_word(rng, 1, 2)
    return f"{first}_{rng.choice(WORDS)}"


def invented_function(rng: random.Random) -> str:
    """Such as "get_price" or "scale_brela"."""
    noun = rng.choice(WORDS) if rng.random() < 0.6 else invented_word(rng, 1, 2)
    return f"{rng.choice(VERBS)}_{noun}"


VARIABLES = Pool([*WORDS, *words_of("a b c i j k m n p q s t u v w x y z")], invented_variable, 0.5)
FUNCTIONS = Pool((), invented_function, 1.0)
