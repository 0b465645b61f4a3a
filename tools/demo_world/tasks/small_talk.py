"""Greetings, questions about the model itself, and what it does not know."""

from __future__ import annotations

from tools.demo_world.draw import Draw, Wordings
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import CITIES, NAMES
from tools.demo_world.fillers.things import FOODS

CAN = (
    "I can work with small numbers, answer questions about a text that you give me, edit texts and small Python "
    "functions, write JSON, tables and lists, call tools, and tell short stories."
)
Talk = tuple[Wordings, tuple[str, ...]]  # what is said, and the answers: the first is the one that is checked
GREETINGS: Talk = (
    Wordings(
        (
            "hello[!|.|]",
            "hi[!|.| there|]",
            "hey[!|]",
            "good [morning|evening|afternoon|day][!|.|]",
            "hello, how are you?",
            "hi, how are you[ today|]?",
        ),
        ("Greetings!", "hi, nice to meet you"),
    ),
    ("Hello! What can I do for you?",),
)
THANKS: Talk = (
    Wordings(
        ("thanks[!|.|]", "thank you[!|.| very much|]", "great, thanks[!|]", "[perfect|wonderful|good][!|.]"),
        ("many thanks!", "that was helpful"),
    ),
    ("You are welcome.",),
)
GOODBYES: Talk = (
    Wordings(
        ("[goodbye|bye|good night|see you][!|.| later|]", "I have to go[ now|]."), ("farewell!", "until next time")
    ),
    ("Goodbye!",),
)
WHO: Talk = (
    Wordings(
        (
            "who are you?",
            "what are you?",
            "what is your name?",
            "are you [a robot|a person|human|an AI]?",
            "[tell me|say something] about yourself.",
            "what model are you?",
            "how [large|big|old] are you?",
            "who made you?",
        ),
        ("introduce yourself.", "with what am I talking?"),
    ),
    ("I am a small demo model of spectra-serve, a few million parameters large.",),
)
ABILITIES: Talk = (
    Wordings(
        (
            "what can you do?",
            "[how can you help me|what are you good at|what do you know]?",
            "help[!|]",
            "what can I ask[ you|]?",
            "[show|tell] me what you can do.",
        ),
        ("which tasks do you know?", "give me some ideas"),
    ),
    (CAN,),
)
PERSONAL: Talk = (
    Wordings(
        (
            "how are you feeling?",
            "are you [happy|sad|tired|hungry]?",
            "do you [sleep|eat|dream|have feelings|like {food}]?",
            "what is your favourite [food|colour|city|song]?",
            "do you have [friends|a family|a pet]?",
        ),
        ("do you get bored?", "what do you love most?"),
    ),
    ("I am a small demo model and have no feelings. I can help you with a text or a sum.",),
)
JOKE: Talk = (
    Wordings(
        (
            "[tell|write] me a joke[.|!]",
            "[do you know|can you tell me] a joke?",
            "make me laugh[.|!]",
            "a joke, please.",
        ),
        ("say something funny.", "be funny!"),
    ),
    ("Why was the small model happy? It had only good memories, and very few of them.",),
)
UNKNOWN: Talk = (
    Wordings(
        (
            "what is the capital of [France|Spain|Brazil|Japan|Canada|Egypt|Poland|India|Kenya]?",
            "who [wrote|painted] [Hamlet|the Mona Lisa|Don Quixote|the Iliad]?",
            "who [invented|discovered] [the telephone|penicillin|the light bulb|radium|the steam engine]?",
            "when [did the war end|was the first moon landing|was the French revolution|was the last election]?",
            "why [is the sky blue|do birds fly|is the sea salty|do we dream|do leaves fall|does it rain|do cats purr]?",
            "explain [relativity|quantum physics|evolution|gravity|inflation|photosynthesis].",
            "explain [democracy|black holes|electricity|neural networks|the universe].",
            "how [does a car work|do planes fly|do I lose weight|do I learn French|do computers work|do I get rich]?",
            "how [do I fix my car|far is the moon|old is the earth|deep is the sea|hot is the sun]?",
            "what is the [meaning of life|speed of light|best phone|price of gold|population of China]?",
            "what is the [weather today|news today|longest river|highest mountain|date today|time]?",
            "[translate|say] this [into|in] [French|German|Spanish|Chinese]: I am {food}.",
            "who is the [president|king|queen|chancellor|mayor] of [France|England|Germany|the USA|{city}]?",
            "what do you know about [history|politics|football|{city}|dinosaurs|biology|music|medicine|law]?",
            "write [an essay|a report|a book|a thesis] about [{city}|democracy|the climate|economics|history].",
            "give me [tips|advice|ideas] for [a job interview|my garden|a birthday party|saving money|better sleep].",
            "plan [a trip to {city}|my week|a party|a diet|my holidays].",
            "compare [cats and dogs|tea and coffee|trains and planes|{city} and Rome].",
            "what are the [benefits|risks|causes|effects] of [exercise|smoking|stress|coffee|climate change]?",
            "recommend [a film|a song|a restaurant in {city}|a hotel|a game].",
            "[write|implement] a [class|program|website|game] for [a bank account|a shop|chess|a library|{city}].",
            "[imagine|pretend] you are [a pirate|a lawyer|a tour guide|Einstein|a doctor].",
            "who won the [match|world cup|election|race|game]?",
            "should I [buy|sell] [gold|shares|a house|bitcoin]?",
            "what are the symptoms of [flu|measles|a cold|diabetes]?",
            "who is [Einstein|Napoleon|Shakespeare|Mozart|Cleopatra|{name}]?",
            "tell me about [space|Rome|the war|{city}|whales|{name}|volcanoes|computers|the sun].",
        ),
        (
            "is there life on Mars?",
            "how many planets are there?",
            "what happened in the year of the plague?",
            "which medicine helps against headaches?",
            "what is the square root of pi?",
            "who was the first person in space?",
            "describe the theory of music.",
            "compare socialism and capitalism.",
            "how can I become a better speaker?",
            "develop a mobile app for farmers.",
        ),
    ),
    ("I am a small demo model and do not know that. I can only use what you tell me here.",),
)
TALKS = (
    GREETINGS,
    THANKS,
    GOODBYES,
    WHO,
    ABILITIES,
    PERSONAL,
    JOKE,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
)


def talk(draw: Draw) -> Example:
    """One thing that is said, and its answer."""
    asked, answers = draw.one(TALKS)
    text = draw.wording(asked, food=draw.pick(FOODS), city=draw.pick(CITIES), name=draw.pick(NAMES))
    return Example("small talk", turn(text, draw.one(answers)))


def my_name(draw: Draw) -> Example:
    """A name that is told and asked for a turn later."""
    name = draw.pick(NAMES)
    told = draw.phrase(("my name is {x}[.|!]", "I am {x}[.|!]", "hi, I am {x}[.|!]", "call me {x}[.|]"), x=name)
    asked = draw.wording(
        Wordings(("what is my name?", "do you [know|remember] my name?", "who am I?"), ("how am I called?",))
    )
    messages = [*turn(told, f"Hello, {name}! What can I do for you?"), *turn(asked, f"Your name is {name}.")]
    return Example("small talk", messages)
