"""The prompts that induction heads are looked for on: answers to them take much from the text given."""

from __future__ import annotations

_GARDEN = """\
The Marsh Lane community garden opened its gates in April after three years of planning. It covers half an acre behind \
the old railway depot and is divided into sixty plots, each four metres by five. Members pay thirty pounds a year; a \
quarter of the plots are kept for families on low incomes, who pay nothing. The soil had to be replaced to a depth of \
forty centimetres, because tests found lead from the depot's paint. Rainwater from the depot roof is collected in two \
tanks of five thousand litres. The committee, led by retired teacher Ruth Alder, hopes to add a greenhouse next spring \
and to sell surplus vegetables at the Saturday market. There are already ninety names on the waiting list."""

_CODE = """\
def read_orders(path):
    orders = []
    with open(path) as handle:
        for line in handle:
            fields = line.strip().split(",")
            order = {"id": int(fields[0]), "customer": fields[1], "total": float(fields[2])}
            orders.append(order)
    return orders


def total_by_customer(orders):
    totals = {}
    for order in orders:
        customer = order["customer"]
        if customer in totals:
            totals[customer] = totals[customer] + order["total"]
        else:
            totals[customer] = order["total"]
    return totals"""

_LETTER = """\
Dear Ms Okafor, thank you for you're letter of 3 March about the delayed delivery of the two oak bookcases. We is very \
sorry that the bookcases has not arrived. Our driver tried to deliver them on 27 February, but nobody were at home and \
he leaved a card. We can deliver the bookcases on 12 March or on 14 March, between nine and twelve in the morning. \
Please let us knows which day suit you better. The delivery will be free of charge."""

_MEETING = """\
Anna: The release is planned for Tuesday, but the payment tests still fail on the staging server.
Boris: The payment tests fail because the staging server uses last year's certificate. I can replace it today.
Chen: Then we could run the tests again tonight and decide tomorrow at ten.
Anna: Good. Boris replaces the certificate today, Chen runs the payment tests tonight, and we decide tomorrow at ten.
Chen: The documentation also lacks a page about refunds.
Boris: I will write the page about refunds by Friday."""

_TABLE = """\
Name: Lindow, country: Norway, height: 1842 m, first climbed: 1876
Name: Carrock, country: Scotland, height: 963 m, first climbed: 1811
Name: Veleta Negra, country: Spain, height: 2710 m, first climbed: 1859
Name: Monte Sordo, country: Italy, height: 3120 m, first climbed: 1865"""

PROMPTS = (
    f"Summarize the following article in three sentences.\n\n{_GARDEN}",
    f"Repeat the following text word for word.\n\n{_GARDEN}",
    f"{_GARDEN}\n\nQuestion: Why did the soil have to be replaced, and who leads the committee?\nAnswer:",
    f"Rewrite this code so that total_by_customer uses collections.defaultdict. Give all of the code.\n\n{_CODE}",
    f"Add docstrings and type hints to this code.\n\n```python\n{_CODE}\n```",
    f"Correct the grammar of this letter and change nothing else.\n\n{_LETTER}",
    f"Rewrite this letter so that it offers 19 March and 21 March instead.\n\n{_LETTER}",
    f"Write the minutes of this meeting: who does what, and by when.\n\n{_MEETING}",
    f"Translate the names of the speakers to Alice, Bob and Cleo, and repeat the conversation.\n\n{_MEETING}",
    f"Turn this list into a Markdown table.\n\n{_TABLE}",
    f"Sort these mountains by height, the highest first, in the same format.\n\n{_TABLE}",
    f"Turn this list into JSON with the keys name, country, height and first_climbed.\n\n{_TABLE}",
)
