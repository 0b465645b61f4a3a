"""The playground in a real browser, before a real server: what people see is what the server said."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from benchmarks.support.browser import PHONE, Browser
from tests.support.page_checks import faint_texts, unnamed_controls
from tests.support.server_process import Server

pytestmark = pytest.mark.cluster

END = "<|end|>"  # of the demo model, which a page does not show
STORY = "Write a story about a panda named Anna and a notebook."
ENDED = "document.getElementById('outcome').textContent"
READY = "!document.getElementById('send').disabled"


def ask(page: Browser, example: str | None = None) -> str:
    """Send the form, with an example chosen; what the page says at the end."""
    page.wait_for(READY)
    page.wait_for("document.querySelector('.chip')")
    if example:
        page.run("[...document.querySelectorAll('.chip')].find((c) => c.textContent === arguments[0]).click()", example)
    page.run("document.getElementById('outcome').textContent = ''")
    page.click("#send")
    return str(page.wait_for(ENDED))


def expected(server: Server, **fields: Any) -> dict[str, Any]:
    """What the server answers without a page."""
    body = {"model": "demo", "messages": [{"role": "user", "content": STORY}], "temperature": 0.8, "seed": 1}
    answer: dict[str, Any] = server.http.post("/v1/chat/completions", json=body | {"max_tokens": 256} | fields).json()
    return answer


def sources_of_text(trace: list[dict[str, Any]]) -> Counter[str]:
    """How many tokens every source drafted, of those that have a text."""
    return Counter(
        step["nodes"][token["node"]]["sources"][0]
        for step in trace
        for token in step["tokens"]
        if token["node"] is not None and token["text"] != END
    )


def test_an_example_is_answered_in_the_colours_of_those_who_drafted_it(page: Browser, demo_server: Server) -> None:
    page.open()
    said = ask(page, "A story")
    speculative = {"method": "suffix+token-recycling", "max_nodes": 64, "trace": True}
    answer = expected(demo_server, speculative=speculative)
    figures = answer["metrics"]["speculative_decoding"]
    assert page.text("#answer") == answer["choices"][0]["message"]["content"]
    tokens, forwards = answer["usage"]["completion_tokens"], figures["num_spec_steps"]
    assert said == f"Done: {tokens} tokens in {forwards} forwards."
    coloured = page.run("return [...document.querySelectorAll('#answer .token')].map((t) => t.className)")
    drafted = [token for token in coloured if "hue-" in token]
    shown_by = sources_of_text(figures["trace"])
    assert len(drafted) == shown_by.total() > tokens / 3
    accepted = Counter({name: counts["accepted"] for name, counts in figures["by_source"].items()})
    assert (accepted - shown_by).total() <= 1  # the mark at the end may be drafted, too, and is counted
    legend = page.text("#legend")
    assert all(f"{name} {n} " in legend for name, n in accepted.items() if n)
    shown = float(page.text("[data-counter=perForward]"))
    assert shown == pytest.approx((tokens - 1) / forwards, abs=0.006)
    assert page.text("[data-counter=forwards]") == str(forwards)
    page.picture("light")


def test_a_token_tells_where_it_comes_from(page: Browser) -> None:
    page.open()
    ask(page, "A story")
    span = page.find("#answer .token.hue-0")
    page.fire("mouseover", span)
    card = page.text("#card")
    for word in ("drafted by ", "step", "depth", "estimated", "proposed by"):
        assert word in card
    assert page.run("return !document.getElementById('card').hidden")
    span = page.find("#answer .token.own")
    page.fire("mouseover", span)
    assert "drawn by the target behind the prompt" in page.text("#card")


def test_the_tree_of_a_step_has_what_was_accepted_and_what_was_not(page: Browser) -> None:
    page.open()
    ask(page, "A story")
    count = "return document.querySelectorAll(`#tree .node.${arguments[0]}`).length"
    accepted, rejected = page.run(count, "accepted"), page.run(count, "rejected")
    assert accepted >= 3
    assert rejected >= 3
    assert page.text("#step-summary").endswith(f"{accepted} accepted, {rejected} rejected.")
    assert page.run(count, "bonus") == page.run(count, "root") == 1
    path = page.texts("#tree .node.accepted text")
    chosen = int(page.run("return document.getElementById('bars').dataset.shown"))
    page.run("document.querySelectorAll('#answer .token')[60].click()")
    other = page.text("#step-summary")
    assert page.run("return document.querySelectorAll('#answer .of-step').length") >= 1
    bars = page.find("#bars svg")
    left = page.run("return arguments[0].getBoundingClientRect().left", bars)
    page.fire("click", bars, left + 7 * chosen + 3)
    page.picture_of("tree", "#steps")
    text = "".join(page.texts("#answer .of-step"))
    assert "".join(path).replace("␣", " ") in text
    assert page.text("#step-summary") != other
    page.click("#step-after")
    assert page.text("#step-summary").startswith(f"Step {chosen + 1} ")


def test_methods_that_race_write_the_same_text_and_get_the_tick(page: Browser, demo_server: Server) -> None:
    page.open()
    page.wait_for(READY)
    page.click("input[value=race]")
    page.run("document.getElementById('racer-3').selectedIndex = document.getElementById('racer-3').length - 1")
    page.click("#send")
    verdict = page.wait_for("document.getElementById('verdict').textContent")
    assert verdict.startswith("Identical texts: 2 methods wrote the same ")
    assert page.run("return getComputedStyle(document.getElementById('verdict'), '::before').content") == '"✓ "'
    texts = page.texts(".racer-answer")
    assert texts == [expected(demo_server)["choices"][0]["message"]["content"]] * 2 + [""]
    forwards = page.texts("[data-counter=forwards]")
    plain, drafted = int(forwards[1]), int(forwards[2])
    assert drafted < 0.6 * plain
    page.run("document.querySelectorAll('.racer')[1].querySelectorAll('.token')[40].click()")
    assert page.run("return !document.getElementById('steps').hidden")


def test_races_one_after_the_other_end_alike_and_three_fit_into_the_page(page: Browser) -> None:
    page.open(theme="dark")
    page.wait_for(READY)
    page.click("input[value=race]")
    page.click("#in-turn")
    page.click("#send")
    verdict = page.wait_for("document.getElementById('verdict').textContent")
    assert verdict.startswith("Identical texts: 3 methods wrote the same ")
    page.picture("race")


def test_a_prediction_and_a_tool(page: Browser) -> None:
    page.open()
    said = ask(page, "An edit, predicted")
    assert page.text("#answer").endswith("The tower opens at 31 in the morning. Uma and Lars met at the harbour.")
    assert "prediction" in page.text("#legend")
    assert int(said.split()[-2]) < 10  # forwards
    ask(page, "A tool")
    assert "send_message" in page.text("#calls strong")
    assert json.loads(page.text("#calls pre"))["recipient"] == "Yusuf"
    assert "<tool_call>" in page.text("#answer")


def test_a_stopped_answer_ends_here_and_in_the_server(page: Browser, demo_server: Server) -> None:
    page.open()
    page.wait_for(READY)
    page.set("temperature", 2)
    page.set("max-tokens", 2048)
    page.click("#send")
    page.wait_for("document.querySelectorAll('#answer .token').length > 10")
    page.click("#stop")
    assert page.wait_for(ENDED).startswith("Stopped after ")
    demo_server.settled()
    assert page.run("return document.getElementById('stop').disabled && !document.getElementById('send').disabled")


def test_the_words_of_the_server_are_shown_when_it_refuses(page: Browser, demo_server: Server) -> None:
    page.open()
    page.wait_for(READY)
    page.set("tools", '[{"name": "no spaces"}]')
    page.click("#send")
    shown = page.wait_for("document.getElementById('alert').textContent")
    tools = [{"type": "function", "function": {"name": "no spaces"}}]
    assert shown == expected(demo_server, tools=tools)["error"]["message"]
    page.set("tools", "[{")
    page.click("#send")
    assert page.text("#alert").startswith("The tools are no JSON")
    assert all("400" in line for line in page.logged())  # a browser's own word on the first


def test_all_of_it_is_there_for_a_keyboard_alone(page: Browser) -> None:
    page.open()
    page.wait_for(READY)
    page.wait_for("document.querySelector('.chip')")
    keyboard = page.keyboard()
    reached = []
    for _ in range(40):
        keyboard.send_keys(Keys.TAB).perform()
        name = page.run("return document.activeElement.id || document.activeElement.textContent.trim()")
        reached.append(name)
        if name == "prompt":
            break
    assert reached[-1] == "prompt"
    assert {"theme", "A story"} <= set(reached)
    keyboard.key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
    keyboard.send_keys(STORY).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.wait_for(ENDED)
    page.find("#answer").send_keys("")
    page.run("document.getElementById('answer').focus()")
    keyboard.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    focused = "return [document.activeElement.dataset.index, document.activeElement.getAttribute('aria-label')]"
    index, label = page.run(focused)
    assert index == "1"
    assert "step" in label
    assert page.run("return document.getElementById('card').hidden") is False
    keyboard.send_keys(Keys.END).perform()
    last = page.run("return document.querySelectorAll('#answer .token').length") - 1
    assert page.run(focused)[0] == str(last)
    keyboard.send_keys(Keys.HOME, Keys.ARROW_DOWN, Keys.ENTER).perform()
    assert page.text("#step-summary").startswith("Step 1 ")
    page.set("temperature", 2)
    page.set("max-tokens", 2048)
    keyboard.key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.wait_for("document.querySelectorAll('#answer .token').length > 5 && !document.getElementById('stop').disabled")
    keyboard.send_keys(Keys.ESCAPE).perform()
    page.wait_for(f"{ENDED}.startsWith('Stopped after ')")


def test_a_phone_shows_all_without_scrolling_sideways(page: Browser) -> None:
    page.open(size=PHONE)
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.run(sideways) == 0
    ask(page, "A story")
    assert page.run(sideways) == 0
    page.picture("phone")
    page.click("input[value=race]")
    assert page.run(sideways) == 0
    page.open("/operator", size=PHONE)
    page.wait_for("document.querySelectorAll('.chart').length === 5")
    assert page.run(sideways) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read_and_every_control_has_a_name(page: Browser, theme: str) -> None:
    page.open(theme=theme)
    ask(page, "A story")
    page.fire("mouseover", page.all(".token.hue-0")[24])
    page.run("document.getElementById('options').open = true")
    assert faint_texts(page) == []
    assert unnamed_controls(page) == []
    if theme == "dark":
        page.run("document.getElementById('options').open = false")
        page.picture("dark")
    page.click("input[value=race]")
    page.click("#send")
    page.wait_for("document.getElementById('verdict').textContent")
    assert faint_texts(page) == []
    assert unnamed_controls(page) == []
    assert page.run("return getComputedStyle(document.body).colorScheme") == "light dark"
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before
    page.run("localStorage.clear()")


def test_those_who_hear_the_page_hear_its_end_and_not_every_token(page: Browser) -> None:
    page.open()
    page.wait_for(READY)
    page.run(
        "window.heard = []; new MutationObserver(() => heard.push(document.getElementById('live').textContent))"
        ".observe(document.getElementById('live'), {childList: true, characterData: true, subtree: true})"
    )
    said = ask(page)
    page.wait_for("heard.length")
    assert [text for text in page.run("return heard") if text] == [said]
    regions = page.all("[aria-live], [role=status], [role=alert], [role=log]")
    assert {region.get_attribute("id") for region in regions} == {"alert", "live"}


def test_no_request_leaves_the_server(page: Browser) -> None:
    for path, is_there in (("/", READY), ("/operator", "document.querySelectorAll('.chart .legend li').length > 3")):
        page.open(path)
        page.wait_for(is_there)
        asked = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert len(asked) > 15
        assert [url for url in asked if not url.startswith(page.base)] == []
    refused = page.module(
        "const told = new Promise((done) => addEventListener('securitypolicyviolation', done));"
        "fetch('http://127.0.0.1:9/').catch(() => {}); return (await told).violatedDirective;"
    )
    assert refused == "connect-src"
    assert all("Content Security Policy" in line or "127.0.0.1:9" in line for line in page.logged())
