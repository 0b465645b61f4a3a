"""The tools that the small world knows: definitions, ways to ask for them, results."""

from __future__ import annotations

from tools.demo_world.fillers.people import HOBBIES, WEEKDAYS
from tools.demo_world.fillers.things import COLOURS, FOODS, OBJECTS, PLACES, SUBJECTS, THINGS
from tools.demo_world.tasks.tool import Tool, city, clock, day, of, person, small

MONEY = ("euros", "dollars", "yen", "francs", "pounds", "crowns", "pesos")
LANGUAGES = ("French", "Spanish", "German", "Italian", "Polish", "Dutch", "Danish", "Greek", "Turkish", "Swedish")
MESSAGES = (
    "[see you|meet me|let us meet] on {t}",
    "I am [late|at home|at the {p}]",
    "the {p} is closed on {t}",
    "[happy birthday|thank you|good luck]",
    "can you come to the {p}?",
    "I will be at the {p} on {t}",
)
SEEN_TOOLS = (
    Tool(
        "get_weather",
        "Weather in a city",
        {"city": city},
        (
            "[what is|how is] the weather in {city}?",
            "[tell me|show me] the weather in {city}.",
            "is it raining in {city}?",
            "do I need an umbrella in {city}?",
        ),
        {"temperature": small, "sky": lambda d: d.one(("sunny", "cloudy", "rainy", "windy", "snowy"))},
        "It is {sky} in {city}, {temperature} degrees.",
    ),
    Tool(
        "get_forecast",
        "Weather forecast for a day",
        {"city": city, "day": day},
        (
            "[what will the weather be|how will the weather be] in {city} on {day}?",
            "[give me|show me] the forecast for {city} on {day}.",
            "will it rain in {city} on {day}?",
        ),
        {"sky": lambda d: d.one(("sunny", "cloudy", "rainy", "windy", "snowy"))},
        "On {day} it will be {sky} in {city}.",
    ),
    Tool(
        "send_message",
        "Send a message to a person",
        {"recipient": person, "text": lambda d: d.phrase(MESSAGES, t=d.one(WEEKDAYS), p=d.pick(PLACES))},
        (
            '[send|write] {recipient} a message: "{text}"',
            '[tell|write to] {recipient}: "{text}"',
            'send "{text}" to {recipient}.',
            "message {recipient}: {text}",
        ),
    ),
    Tool(
        "set_timer",
        "Start a timer",
        {"minutes": small},
        (
            "[set|start] a timer for {minutes} minutes.",
            "wake me in {minutes} minutes.",
            "[please |]{minutes} minutes on the timer.",
            "remind me in {minutes} minutes.",
        ),
        {"status": lambda d: "started"},
        "The timer for {minutes} minutes is started.",
    ),
    Tool(
        "set_alarm",
        "Set an alarm",
        {"time": clock, "day": day},
        (
            "[set|make] an alarm for {time} on {day}.",
            "wake me up at {time} on {day}.",
            "on {day} I have to get up at {time}.",
        ),
    ),
    Tool(
        "search_products",
        "Search the shop",
        {"query": of(OBJECTS), "colour": of(COLOURS)},
        (
            "[find|search for|look for|show me] a {colour} {query}.",
            "I want to buy a {colour} {query}.",
            "do you have a {query} in {colour}?",
        ),
        {"price": small, "stock": small},
        "The {colour} {query} costs {price} euros; {stock} are in stock.",
    ),
    Tool(
        "add_to_cart",
        "Put an item into the cart",
        {"item": of(THINGS), "quantity": small},
        (
            "[add|put] {quantity} {item} [to|into] my cart.",
            "I [want|would like|take] {quantity} {item}.",
            "{quantity} {item}, please.",
        ),
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money",
        {"amount": small, "source": lambda d: d.one(MONEY), "target": lambda d: d.one(MONEY)},
        (
            "[convert|change] {amount} {source} to {target}.",
            "how much is {amount} {source} in {target}?",
            "what are {amount} {source} in {target}?",
        ),
        {"result": small},
        "{amount} {source} are {result} {target}.",
    ),
    Tool(
        "book_table",
        "Book a table in a restaurant",
        {"restaurant": person, "people": small, "time": clock},
        (
            "[book|reserve] a table for {people} [people |]at {restaurant} at {time}.",
            "we are {people} and want to eat at {restaurant} at {time}.",
            "a table at {restaurant} for {people}, {time}, please.",
        ),
    ),
    Tool(
        "find_train",
        "Find a train between two cities",
        {"origin": city, "destination": city},
        (
            "[find|show me|look up] a train from {origin} to {destination}.",
            "how do I get from {origin} to {destination} by train?",
            "when does a train leave {origin} for {destination}?",
            "I want to travel from {origin} to {destination}.",
        ),
        {"departure": clock, "platform": small},
        "The train from {origin} to {destination} leaves at {departure} from platform {platform}.",
    ),
    Tool(
        "create_event",
        "Add an event to the calendar",
        {"title": of(HOBBIES), "day": day, "time": clock},
        (
            "[add|put] {title} on {day} at {time} [to|into] my calendar.",
            "I have {title} on {day} at {time}, note it.",
            "[plan|schedule] {title} for {day}, {time}.",
        ),
    ),
    Tool(
        "play_music",
        "Play music of an artist",
        {"artist": person},
        ("play [something|a song|music] by {artist}.", "I want to hear {artist}.", "put on {artist}, please."),
    ),
    Tool(
        "get_recipe",
        "Look up a recipe",
        {"dish": of(FOODS)},
        (
            "[how do I make|how do you cook] {dish}?",
            "[find|give me|show me] a recipe for {dish}.",
            "I want to cook {dish}.",
        ),
        {"minutes": small, "servings": small},
        "{dish} takes {minutes} minutes and serves {servings}.",
    ),
    Tool(
        "add_numbers",
        "Add two numbers",
        {"a": small, "b": small},
        ("[use the tool to |]add {a} and {b}.", "what is {a} plus {b}?", "what is the sum of {a} and {b}?"),
        {"sum": lambda d: d.number(20, 120)},
        "The sum of {a} and {b} is {sum}.",
    ),
    Tool(
        "get_population",
        "Population of a city",
        {"city": city},
        ("how many people live in {city}?", "what is the population of {city}?", "how [big|large] is {city}?"),
        {"population": lambda d: d.number(1, 99) * 1000},
        "{city} has {population} people.",
    ),
    Tool(
        "turn_on",
        "Switch a device on",
        {"device": of(OBJECTS), "room": of(PLACES)},
        (
            "[turn|switch] on the {device} in the {room}.",
            "the {device} in the {room} should be on.",
            "[please |]switch the {device} in the {room} on.",
        ),
    ),
    Tool(
        "find_book",
        "Find books on a subject",
        {"subject": of(SUBJECTS)},
        (
            "[find|show me|recommend] a book [on|about] {subject}.",
            "I want to read about {subject}.",
            "do you have books on {subject}?",
        ),
        {"title": of(OBJECTS), "author": person},
        'A book on {subject} is "{title}" by {author}.',
    ),
    Tool(
        "translate",
        "Translate a word",
        {"word": of(OBJECTS), "language": lambda d: d.one(LANGUAGES)},
        (
            "[translate|say] {word} [into|in] {language}.",
            "what is {word} in {language}?",
            "how do you say {word} in {language}?",
        ),
    ),
)
UNSEEN_TOOLS = (  # never trained on
    Tool(
        "get_time",
        "Current time in a city",
        {"city": city},
        ("what time is it in {city}?", "[tell me|show me] the time in {city}."),
    ),
    Tool(
        "delete_contact",
        "Remove a person from the contacts",
        {"contact": person},
        ("[delete|remove] {contact} from my contacts.", "I do not need {contact} as a contact any more."),
    ),
    Tool(
        "paint_wall",
        "Paint the wall of a room",
        {"room": of(PLACES), "colour": of(COLOURS)},
        ("paint the wall of the {room} {colour}.", "I want the {room} wall in {colour}."),
    ),
    Tool(
        "order_food",
        "Order food",
        {"food": of(FOODS), "portions": small},
        ("order {portions} portions of {food}.", "I am hungry. Get me {food}, {portions} portions."),
    ),
)
