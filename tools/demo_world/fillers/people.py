"""People and what is said about them."""

from __future__ import annotations

import random

from tools.demo_world.draw import Pool, words_of
from tools.demo_world.fillers.invented import invented_word


def invented_name(rng: random.Random) -> str:
    """A name that no list holds, such as "Tomira"."""
    return invented_word(rng, 2, 2).capitalize()


NAMES = Pool(
    words_of("""
    Anna Ben Clara David Emma Felix Grace Henry Iris Jack Karen Leo Maria Noah Olivia Paul Quinn Rosa Sam Tina Uma
    Victor Wendy Xavier Yara Zoe Adam Alice Amir Anton Aisha Bella Boris Bruno Carla Carlos Cora Chen Daisy Dana
    Daniel Diego Dora Edgar Elena Eli Ella Eric Esther Eva Farid Fatima Fiona Frank Gina Giulia Greta Hana Hannah
    Hugo Ida Igor Ines Ivan Jacob James Jana Jasmine Joan John Jonas Julia Kai Kate Kenji Kevin Lara Laura Lena Liam
    Lily Linda Lisa Lucas Lucy Luis Luna Mara Marco Mark Marta Mary Max Maya Mia Milan Mina Mohamed Mona Nadia
    Nathan Nico Nina Nora Olga Omar Oscar Pablo Paula Pedro Peter Petra Pia Priya Ravi Rita Robert Robin Ruth Sara
    Sasha Simon Sofia Stefan Susan Tara Theo Thomas Tim Tom Toni Vera Viktor Walter Willow Yusuf Zara Ada Alan Arun
    Cleo Dennis Erin Gwen Harry Jade June Keiko Kira Logan Mei Miles Otto Rafael Rosie Selma Tess Ugo Vivian Wade
    Yoko Zack
    """),
    invented_name,
    0.35,
)
PET_NAMES = Pool(
    words_of("""
    Pepper Milo Bella Coco Rocky Daisy Biscuit Shadow Ginger Oreo Luna Simba Smokey Patch Pumpkin Muffin Waffles
    Pickles Honey Peanut Cookie Rusty Snowy Toffee Buddy Lucky Bubbles Nugget Maple Hazel Sunny Olive
    """),
    invented_name,
    0.35,
)
CITIES = Pool(
    words_of("""
    Oslo Rome Paris Berlin Madrid Lisbon Vienna Dublin Prague Warsaw Athens Cairo Lagos Nairobi Lima Quito Bogota
    Santiago Toronto Boston Chicago Denver Austin Seattle Dallas Miami Tokyo Osaka Kyoto Seoul Delhi Mumbai Hanoi
    Manila Jakarta Sydney Perth Auckland Zurich Geneva Milan Turin Naples Porto Seville Valencia Hamburg Munich
    Cologne Bremen Leeds York Bristol Oxford Glasgow Bergen Malmo Helsinki Riga Vilnius Tallinn Krakow Budapest
    Zagreb Sofia Tunis Accra Dakar Havana Montreal Vancouver Calgary Phoenix Portland Nashville Houston Lyon Nice
    Ghent Basel
    """),
    invented_name,
    0.3,
)
JOBS = Pool(
    words_of("""
    baker teacher nurse doctor farmer pilot painter singer driver carpenter plumber tailor gardener librarian chef
    waiter dentist lawyer actor dancer writer poet barber butcher florist mechanic engineer builder fisherman sailor
    firefighter photographer journalist translator programmer designer scientist astronomer potter jeweler cook
    clerk cashier guard judge miner coach vet banker grocer
    """),
    invented=0.2,
)
HOBBIES = Pool(
    words_of("""
    swimming reading painting cooking hiking dancing singing fishing gardening cycling running knitting drawing
    chess football tennis sailing skating skiing climbing baking photography pottery yoga surfing sewing juggling
    origami archery birdwatching camping rowing
    """),
    invented=0.2,
)
ANIMALS = Pool(
    words_of("""
    cat dog rabbit parrot hamster turtle horse goat fox owl bear mouse frog hedgehog squirrel duck goose sheep cow
    pig lion tiger elephant monkey penguin otter beaver badger crow swan snail bee ant whale dolphin seal wolf deer
    donkey camel koala panda raccoon lizard
    """),
    invented=0.2,
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = words_of("January February March April May June July August September October November December")
