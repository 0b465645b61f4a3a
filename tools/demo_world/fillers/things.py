"""Things, places and qualities."""

from __future__ import annotations

from tools.demo_world.draw import Pool, words_of
from tools.demo_world.fillers.invented import invented_word

# Countable things, in the plural; a trailing "s" makes it.
THINGS = Pool(
    words_of("""
    apples pears plums oranges lemons bananas cherries melons peaches figs carrots onions potatoes tomatoes eggs
    cookies muffins cakes candles books pencils pens erasers notebooks stamps coins marbles buttons shells stones
    flowers roses tulips balloons kites balls dolls puzzles stickers cards tickets postcards bottles cups plates
    spoons forks bowls baskets boxes bags hats scarves gloves socks shirts shoes keys lamps chairs nails screws
    bricks planks ropes seeds leaves feathers ribbons beads rings bells drums photos magnets batteries cables
    sandwiches bagels pancakes nuts olives grapes mangoes pumpkins cabbages peppers brushes towels pillows blankets
    umbrellas maps
    """),
    invented=0.3,
)
# One thing, with an indefinite article that fits.
OBJECTS = Pool(
    words_of("""
    lamp kettle mirror clock chair table carpet vase basket ladder hammer bucket pillow blanket scarf jacket guitar
    violin drum camera radio laptop keyboard bicycle backpack suitcase wallet notebook candle teapot bottle mug
    plate spoon painting poster puzzle kite telescope compass lantern whistle ring necklace bracelet watch tent rope
    map shovel rake broom sofa desk shelf curtain toaster blender printer monitor tablet helmet
    """),
    lambda rng: invented_word(rng, 2, 2),
    0.2,
)
FOODS = Pool(
    words_of("""
    pizza pasta soup rice bread cheese salad curry sushi noodles pancakes chocolate honey yogurt porridge dumplings
    tacos lasagna stew omelette risotto ramen waffles falafel hummus paella toast cereal
    """),
    invented=0.25,
)
COLOURS = Pool(
    words_of(
        "red blue green yellow orange purple pink brown black white grey silver golden turquoise "
        "violet crimson beige scarlet navy olive"
    ),
    invented=0.15,
)
PLACES = Pool(
    words_of("""
    market park library school bakery garden forest beach harbour station museum farm castle village river lake hill
    valley island bridge theatre kitchen workshop meadow tower mill cave orchard
    """),
    invented=0.15,
)
ADJECTIVES = Pool(
    words_of("""
    small old big new quiet happy clever brave kind curious gentle bright warm cold soft strong heavy light round
    tall shiny dusty broken lovely funny strange lazy busy proud shy tiny wooden
    """),
    invented=0.15,
)
SUBJECTS = Pool(
    words_of("math history music art biology chemistry physics geography spelling drama geometry grammar"), invented=0.2
)
