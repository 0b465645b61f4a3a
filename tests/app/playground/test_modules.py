"""Modules of the pages that know no page, in a real browser, against slow obvious oracles in Python."""

from __future__ import annotations

import codecs
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.support.browser import Browser
from tests.support.server_process import Server

pytestmark = pytest.mark.cluster

TEXT = " The fox 🦊 drafts: 日本語 and\n\tthe river — übrigens — keeps running. bytes"


def in_browser(page: Browser, body: str, *given: Any) -> Any:
    """The value of a module's body; ``given`` are its first constants, a, b and so on."""
    constants = "".join(f"const {chr(97 + i)} = {json.dumps(value)};" for i, value in enumerate(given))
    return page.module(constants + body)


def cut(raw: bytes, chance: random.Random) -> list[bytes]:
    places = sorted({0, len(raw), *(chance.randrange(len(raw)) for _ in range(20))})
    return [raw[start:end] for start, end in pairwise(places)]


def told(part: bytes) -> str:
    """The text of a token as the server tells it."""
    try:
        return part.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in part)


def test_every_token_gets_its_part_of_the_text_wherever_tokens_and_chunks_are_cut(page: Browser) -> None:
    chance = random.Random(7)
    cases, wanted = [], []
    for number in range(60):
        decoder = codecs.getincrementaldecoder("utf-8")()
        chunks: list[tuple[list[str], list[dict[str, str]]]] = [([], [])]
        pieces = []
        for part in cut(TEXT.encode(), chance):
            pieces.append(decoder.decode(part))
            if number % 2 and len(pieces) == 1:  # an answer need not begin with the space of its first token
                pieces[0] = pieces[0].removeprefix(" ")
            chunks[-1][0].append(pieces[-1])
            chunks[-1][1].append({"text": told(part)})
            if chance.random() < 0.4:
                chunks.append(([], []))
        chunks[-1][1].append({"text": "<|end|>"})  # a special token has no text in the answer
        cases.append([("".join(texts), tokens) for texts, tokens in chunks])
        wanted.append([*pieces, ""])
    page.open()
    body = """
    const { Aligner } = await import("/playground/js/data/trace.js");
    return a.map((chunks) => {
      const aligner = new Aligner();
      const found = chunks.flatMap(([text, tokens]) => aligner.push(text, tokens));
      return [...found, ...aligner.end()].map(([token, text]) => [token.text, text]);
    });"""
    for chunks, pieces, found in zip(cases, wanted, in_browser(page, body, cases), strict=True):
        assert [token for token, _ in found] == [token["text"] for _, tokens in chunks for token in tokens]
        assert [text for _, text in found] == pieces


def test_text_that_no_token_spells_is_shown_at_the_end(page: Browser) -> None:
    page.open()
    body = """
    const { Aligner } = await import("/playground/js/data/trace.js");
    const aligner = new Aligner();
    const found = [...aligner.push("The fox", [{ text: "The" }]), ...aligner.end()];
    return found.map(([token, text]) => [token && token.text, text]);"""
    assert in_browser(page, body) == [["The", "The"], [None, " fox"]]


def test_events_are_cut_wherever_the_network_cuts_them(page: Browser) -> None:
    sent = ": keep-alive\n\n" + "".join(f"data: {json.dumps({'n': n, 'text': 'ü 🦊'})}\n\n" for n in range(20))
    chance = random.Random(3)
    places = sorted({0, len(sent), *(chance.randrange(len(sent)) for _ in range(60))})
    parts = [sent[start:end] for start, end in pairwise(places)]
    page.open()
    body = """
    const { EventCutter } = await import("/playground/js/data/sse.js");
    const cutter = new EventCutter();
    return a.flatMap((part) => cutter.push(part)).map((data) => JSON.parse(data).n);"""
    assert in_browser(page, body, parts) == list(range(20))


def test_metrics_are_read_as_prometheus_reads_them(page: Browser, demo_server: Server) -> None:
    text = demo_server.http.get("/metrics").text
    text += (
        '# a comment\nodd{path="a\\\\b\\"c\\nd",of="{x=1}, y"} NaN\nplain +Inf\nlower -Inf\nsmall 1.5e-07 1700000000\n'
    )
    wanted = [
        (sample.name, dict(sample.labels), repr(float(sample.value)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    page.open()
    body = """
    const { parsed } = await import("/playground/js/data/exposition.js");
    return parsed(a).map(({ name, labels, value }) => [name, labels, String(value)]);"""
    found = in_browser(page, body, text)
    assert len(found) == len(wanted) > 300
    spelt = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
    for (name, labels, value), (other, others, number) in zip(found, wanted, strict=True):
        assert (name, labels, repr(float(spelt.get(value, value)))) == (other, others, number)


def test_the_boxes_of_a_tree_lie_apart_and_the_accepted_path_is_its_top_row(page: Browser) -> None:
    chance = random.Random(5)
    steps = [random_step(chance) for _ in range(40)]
    page.open()
    body = """
    const { layout } = await import("/playground/js/data/tree_layout.js");
    return a.map((step) => {
      const { boxes, width, height } = layout(step, "root", (text) => text);
      const plain = boxes.map((box) => [box.x, box.y, box.width, box.node && box.node.token_id, box.bonus]);
      return [plain, boxes.map((box) => boxes.indexOf(box.parent)), width, height];
    });"""
    for step, (boxes, parents, width, height) in zip(steps, in_browser(page, body, steps), strict=True):
        assert sorted(box[3] for box in boxes if box[3] is not None) == list(range(len(step["nodes"])))
        for i, (x, y, wide, node, is_bonus) in enumerate(boxes):
            assert 0 <= x <= x + wide <= width
            assert 0 <= y < y + 20 <= height
            if parents[i] >= 0:
                assert boxes[parents[i]][0] + boxes[parents[i]][2] < x
            if node is not None:
                parent = step["nodes"][node]["parent"]
                assert boxes[parents[i]][3] == (None if parent < 0 else parent)
                assert not step["nodes"][node]["accepted"] or y == boxes[0][1]
            for other in boxes[:i]:
                assert y != other[1] or x >= other[0] + other[2] or other[0] >= x + wide
            assert not is_bonus or y == boxes[0][1]
        assert sum(box[4] for box in boxes) == 1


def random_step(chance: random.Random) -> dict[str, Any]:
    """A step whose nodes hang anywhere, its first children accepted up to some depth."""
    n = chance.randrange(0, 40)
    nodes: list[dict[str, Any]] = []
    for i in range(n):
        parent = chance.randrange(-1, i)
        nodes.append({"token_id": i, "text": "x" * chance.randrange(1, 9), "parent": parent, "accepted": False})
        nodes[-1] |= {"probability": chance.choice([None, chance.random()]), "probe": chance.random() < 0.1}
    path, at = [], -1
    while chance.random() < 0.8 and (below := [i for i, one in enumerate(nodes) if one["parent"] == at]):
        at = chance.choice(below)
        nodes[at] |= {"accepted": True, "probe": False}
        path.append(at)
    tokens = [{"token_id": 0, "text": "t", "node": node} for node in (*path, None)]
    return {"step": 1, "nodes": nodes, "tokens": tokens}
