"""More of the playground in a real browser: examples, keyboard, phone, accessible names, killed processes."""

from __future__ import annotations

import codecs
import json
import random
import re
from itertools import pairwise

import pytest
from selenium.webdriver.common.keys import Keys

from tests.newcomer.playground.walks import EXAMPLES, OUTCOME, READY, answer_of, choose, send
from tests.support.browser import PHONE, Browser
from tests.support.server_process import SpectraServer
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.matrix


def test_an_answer_is_drafted_from_its_prediction(page: Browser, server: SpectraServer) -> None:
    page.open()
    choose(page, "An edit, predicted")
    page.set("prediction", answer_of(server, "An edit, predicted")["choices"][0]["message"]["content"])
    send(page)
    assert "prediction" in page.text("#legend")


def test_a_stopped_answer_ends_in_the_page_and_in_the_server(page: Browser, server: SpectraServer) -> None:
    page.open()
    page.wait_for(READY)
    page.set("temperature", 2)
    page.set("max-tokens", 2048)
    page.click("#send")
    page.wait_for("document.querySelectorAll('#answer .token').length > 10")
    page.click("#stop")
    assert page.wait_for(OUTCOME).startswith("Stopped after ")
    server.settled()
    assert page.run("return document.getElementById('stop').disabled && !document.getElementById('send').disabled")


def test_a_keyboard_alone_is_enough(page: Browser) -> None:
    page.open()
    page.wait_for(READY)
    keyboard = page.keyboard()
    reached: list[str] = []
    while "prompt" not in reached:
        assert len(reached) < 40
        keyboard.send_keys(Keys.TAB).perform()
        reached.append(page.run("return document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"theme", "A story"} <= set(reached)
    keyboard.key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
    keyboard.send_keys(EXAMPLES["A story"]["prompt"]).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(
        Keys.CONTROL
    ).perform()
    page.wait_for(OUTCOME)
    page.run("document.getElementById('answer').focus()")
    keyboard.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    focused = "return [document.activeElement.dataset.index, document.activeElement.getAttribute('aria-label')]"
    index, label = page.run(focused)
    assert index == "1"
    assert "step" in label
    assert page.run("return document.getElementById('card').hidden") is False
    keyboard.send_keys(Keys.END).perform()
    assert int(page.run(focused)[0]) == page.run("return document.querySelectorAll('#answer .token').length") - 1
    keyboard.send_keys(Keys.HOME, Keys.ARROW_DOWN, Keys.ENTER).perform()
    assert page.text("#step-summary").startswith("Step 1 ")
    page.set("temperature", 2)
    page.set("max-tokens", 2048)
    keyboard.key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.wait_for("document.querySelectorAll('#answer .token').length > 5 && !document.getElementById('stop').disabled")
    keyboard.send_keys(Keys.ESCAPE).perform()
    page.wait_for(f"{OUTCOME}.startsWith('Stopped after ')")


def test_a_phone_shows_everything_without_scrolling_sideways(page: Browser) -> None:
    page.open(size=PHONE)
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    choose(page, "A story")
    send(page)
    assert page.run(sideways) == 0
    page.picture("phone")
    page.click("input[value=race]")
    assert page.run(sideways) == 0
    page.open("/operator", size=PHONE)
    page.wait_for("document.querySelectorAll('.chart').length === 5")
    assert page.run(sideways) == 0


CONTROLS = "button|checkbox|combobox|image|link|listbox|progress(Indicator|bar)|radio|slider|spinbutton|textbox"


def test_every_control_has_an_accessible_name_and_a_click_changes_the_theme(page: Browser) -> None:
    page.open(theme="dark")
    choose(page, "A story")
    send(page)
    page.picture("dark")
    page.run("document.getElementById('options').open = true")
    page.cdp("Accessibility.enable")
    nodes = page.cdp("Accessibility.getFullAXTree")["nodes"]
    controls = [node for node in nodes if re.fullmatch(CONTROLS, str(node.get("role", {}).get("value")))]
    assert len(controls) > 10
    assert [node for node in controls if not node["ignored"] and not node["name"]["value"].strip()] == []
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before
    page.run("localStorage.clear()")


def test_pages_send_requests_to_their_own_server_alone(page: Browser) -> None:
    for path, is_there in (("/", READY), ("/operator", "document.querySelectorAll('.chart .legend li').length > 3")):
        page.open(path)
        page.wait_for(is_there)
        urls = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert len(urls) > 15
        assert [url for url in urls if not url.startswith(page.base)] == []
    refused = page.module(
        "const violation = new Promise((done) => addEventListener('securitypolicyviolation', done));"
        "fetch('http://127.0.0.1:9/').catch(() => {}); return (await violation).violatedDirective;"
    )
    assert refused == "connect-src"
    assert all("Content Security Policy" in line or "127.0.0.1:9" in line for line in page.logged())


STREAMS = "[...document.querySelectorAll('.stream')]"
OF_ALL = f"{STREAMS}.reduce((n, one) => n + Number(one.dataset[arguments[0]]), 0)"


def of_all_streams(page: Browser, figure: str) -> int:
    """Return the sum of a figure over all streams."""
    return int(page.run(f"return {OF_ALL}", figure))


def wait_for_answers(page: Browser, n: int) -> None:
    """Wait until streams have ended ``n`` more answers; the page compares each with the first of its stream."""
    page.wait_for(f"{OF_ALL} >= arguments[1]", "done", of_all_streams(page, "done") + n)


def kill(page: Browser, part: str, news: str) -> str:
    """Press the button that kills a part; return the page's news once they say ``news``."""
    page.wait_for(f"document.querySelector('[data-victim={part}]')")
    page.click(f"[data-victim={part}]")
    page.wait_for("document.getElementById('news').textContent.includes(arguments[0])", news, within=LIMIT_S)
    return page.text("#news")


def test_killed_processes_change_no_text(page: Browser, server: SpectraServer) -> None:
    page.open("/operator")
    page.wait_for("document.getElementById('state').textContent === 'ready'")
    page.run("document.getElementById('streams-count').value = '2'")
    page.click("#streams-button")
    page.wait_for(f"{STREAMS}.length && {STREAMS}.every((one) => one.dataset.done > 0)")
    router = server.process_of("ServeReplica:spectra:Router").pid
    news = kill(page, "router", "another router serves")
    assert f"SIGKILL to router, process {router}" in news
    assert server.health()["router_pid"] != router
    wait_for_answers(page, 4)
    news = kill(page, "stage-1", "a pipeline was lost")
    assert "SIGKILL to stage 1, process " in news
    page.wait_for("document.getElementById('news').lastChild.textContent.includes('ready again')", within=LIMIT_S)
    wait_for_answers(page, 4)
    kill(page, "speculator-0", "SIGKILL to speculator 0")
    wait_for_answers(page, 4)
    assert of_all_streams(page, "different") == of_all_streams(page, "failed") == 0
    page.wait_for("[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('.legend li'))")
    page.picture("operator")
    page.click("#streams-button")
    server.settled()
    assert all("/metrics" in line and "503" in line for line in page.logged())  # metrics come from the router


def test_streams_outlive_the_ingress(page: Browser, server: SpectraServer) -> None:
    page.open("/operator")
    page.run("document.getElementById('streams-count').value = '2'")
    page.wait_for("document.querySelector('[data-victim=ingress]')")
    page.click("#streams-button")
    page.wait_for(f"{STREAMS}.length && {STREAMS}.every((one) => one.dataset.done > 0)")
    kill(page, "ingress", "SIGKILL to ingress")
    wait_for_answers(page, 4)
    assert of_all_streams(page, "different") == of_all_streams(page, "failed") == 0
    page.click("#streams-button")
    server.settled()
    page.logged()  # drops the lost connections


TEXT = " The fox 🦊 drafts: 日本語 and\n\tthe river — übrigens — keeps running. bytes"


def cut(raw: bytes, chance: random.Random) -> list[bytes]:
    places = sorted({0, len(raw), *(chance.randrange(len(raw)) for _ in range(20))})
    return [raw[start:end] for start, end in pairwise(places)]


def token_text(part: bytes) -> str:
    """Return a token's text as the server sends it."""
    try:
        return part.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in part)


def test_every_token_gets_its_part_of_the_text_however_chunks_are_cut(page: Browser) -> None:
    chance = random.Random(7)
    cases, expected = [], []
    for number in range(60):
        decoder = codecs.getincrementaldecoder("utf-8")()
        chunks: list[tuple[list[str], list[dict[str, str]]]] = [([], [])]
        pieces = []
        for part in cut(TEXT.encode(), chance):
            pieces.append(decoder.decode(part))
            if number % 2 and len(pieces) == 1:  # an answer need not begin with the space of its first token
                pieces[0] = pieces[0].removeprefix(" ")
            chunks[-1][0].append(pieces[-1])
            chunks[-1][1].append({"text": token_text(part)})
            if chance.random() < 0.4:
                chunks.append(([], []))
        chunks[-1][1].append({"text": "<|end|>"})  # a special token has no text in the answer
        cases.append([("".join(texts), tokens) for texts, tokens in chunks])
        expected.append([*pieces, ""])
    page.open()
    body = """
    const { Aligner } = await import("/playground/js/data/trace.js");
    return cases.map((chunks) => {
      const aligner = new Aligner();
      const found = chunks.flatMap(([text, tokens]) => aligner.push(text, tokens));
      return [...found, ...aligner.end()].map(([token, text]) => [token.text, text]);
    });"""
    results = page.module(f"const cases = {json.dumps(cases)};{body}")
    for chunks, pieces, found in zip(cases, expected, results, strict=True):
        assert [token for token, _ in found] == [token["text"] for _, tokens in chunks for token in tokens]
        assert [text for _, text in found] == pieces
