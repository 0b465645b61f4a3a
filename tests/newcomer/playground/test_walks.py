"""Essential walks through the playground in a real browser: an answer, its tree, a race, keys, hostile text."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from app.access.caller import AccessOptions
from app.access.key_file import digest_of, new_key
from app.access.keyring import Keyring
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from engine.events import RequestStats
from tests.app.conftest import ScriptedBackend, listening
from tests.newcomer.playground.walks import OUTCOME, READY, VERDICT, answer_of, choose, send
from tests.support.browser import Browser
from tests.support.server_process import SpectraServer
from tests.support.tiny_models import tiny_tokenizer
from tests.support.trace_cases import CASES

pytestmark = pytest.mark.cluster

DECISIONS = {"text:drafts": 12, "off:unlikely": 30, "all:trial": 8, "new:reason": 10}
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script> & <b>bold</b>'


def test_an_answer_is_the_server_s_and_drafted_tokens_have_the_colours_of_their_sources(
    page: Browser, server: SpectraServer
) -> None:
    page.open()
    choose(page, "A story")
    outcome = send(page)
    answer = answer_of(
        server, "A story", speculative={"method": "suffix+token-recycling", "max_nodes": 64, "trace": True}
    )
    assert page.text("#answer") == answer["choices"][0]["message"]["content"]
    tokens, forwards = map(int, re.findall(r"\d+", outcome))
    assert outcome.startswith(f"Done: {answer['usage']['completion_tokens']} tokens in {forwards} forwards.")
    assert page.text("[data-counter=forwards]") == str(forwards)
    assert float(page.text("[data-counter=perForward]")) == pytest.approx((tokens - 1) / forwards, abs=0.006)
    classes = " ".join(page.run("return [...document.querySelectorAll('#answer .token')].map((t) => t.className)"))
    coloured = Counter(re.findall(r"hue-\d+", classes))
    rows = page.run(
        "return [...document.querySelectorAll('#legend li')].map((li) => [li.firstChild.className, li.textContent])"
    )
    legend = Counter({swatch.split()[-1]: int(text.split()[-3]) for swatch, text in rows if "hue-" in swatch})
    assert coloured.total() > 0
    assert coloured <= legend
    assert (legend - coloured).total() <= 1  # a drafted end mark has no text
    page.fire("mouseover", page.find("#answer .token[class*=hue-]"))
    assert "drafted by " in page.text("#card")
    page.picture("light")


def test_the_tree_of_a_step_shows_accepted_and_rejected_tokens(page: Browser) -> None:
    page.open()
    choose(page, "A story")
    send(page)
    count = "return document.querySelectorAll(`#tree .node.${arguments[0]}`).length"
    accepted, rejected = page.run(count, "accepted"), page.run(count, "rejected")
    assert accepted >= 1
    assert rejected >= 1
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
    assert "".join(path).replace("␣", " ") in "".join(page.texts("#answer .of-step"))
    assert page.text("#step-summary") != other
    page.click("#step-after")
    assert page.text("#step-summary").startswith(f"Step {chosen + 1} ")


def test_methods_in_a_race_write_the_same_text(page: Browser, server: SpectraServer) -> None:
    page.open(theme="dark")
    page.wait_for(READY)
    page.click("input[value=race]")
    page.run("document.getElementById('racer-3').selectedIndex = document.getElementById('racer-3').length - 1")
    page.click("#send")
    assert page.wait_for(VERDICT).startswith("Identical texts: 2 methods wrote the same ")
    assert page.texts(".racer-answer") == [answer_of(server, "Advice")["choices"][0]["message"]["content"]] * 2 + [""]
    plain, drafted = map(int, page.texts("[data-counter=forwards]")[1:3])
    assert drafted < plain
    page.picture("race")
    page.run("document.querySelectorAll('.racer')[1].querySelectorAll('.token')[40].click()")
    assert page.run("return !document.getElementById('steps').hidden")


def test_a_refusal_is_shown_in_the_server_s_words(page: Browser, server: SpectraServer) -> None:
    page.open()
    page.wait_for(READY)
    page.set("tools", '[{"name": "no spaces"}]')
    page.click("#send")
    shown = page.wait_for("document.getElementById('alert').textContent")
    tools = [{"type": "function", "function": {"name": "no spaces"}}]
    assert shown == answer_of(server, "Advice", tools=tools)["error"]["message"]
    page.set("tools", "[{")
    page.click("#send")
    assert page.text("#alert").startswith("Tools: this is not JSON")
    assert all("400" in line for line in page.logged())  # the browser's own message on the first refusal


def give_key(page: Browser, key: str) -> None:
    field = page.find("#key")
    field.clear()
    field.send_keys(key + "\t")


def test_a_page_asks_for_a_key_and_only_an_admin_s_shows_drafts(
    window: Browser, backend: ScriptedBackend, tmp_path: Path
) -> None:
    plain, admin = new_key(), new_key()
    file = tmp_path / "keys.jsonl"
    rows = [
        {"id": f"k{i}", "sha256": digest_of(key), "tenant": "a", "admin": bool(i)}
        for i, key in enumerate((plain, admin))
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    api = Api(backend, backend.tokenizer, ServiceSettings())
    app = create_app(api, AccessOptions(api_keys=str(file)), Keyring(file), Playground(PlaygroundOptions()))
    with listening(app) as window.base:
        window.open()
        window.wait_for("document.getElementById('alert').textContent.includes('asks for a key')")
        assert "missing; it must be: Bearer KEY" in window.text("#alert")
        give_key(window, "sk-wrong")
        window.wait_for("document.getElementById('alert').textContent.includes('not known to this server')")
        give_key(window, plain)
        window.wait_for("!document.getElementById('send').disabled")
        assert window.run("return !document.getElementById('untraced').hidden")
        window.click("#send")
        assert window.wait_for(OUTCOME).startswith("Done: ")
        assert "The fox" in window.text("#answer")
        assert window.all("#answer .token") == []
        give_key(window, admin)
        window.wait_for("document.getElementById('untraced').hidden")
        assert window.run("return Object.keys(localStorage).length + document.cookie.length") == 0


def test_html_that_a_model_writes_is_shown_as_text(window: Browser, backend: ScriptedBackend) -> None:
    backend.answer = HOSTILE
    app = create_app(Api(backend, backend.tokenizer, ServiceSettings()), playground=Playground(PlaygroundOptions(True)))
    with listening(app) as window.base:
        window.open()
        window.wait_for(READY)
        window.set("temperature", 0)
        title = window.driver.title
        window.click("#send")
        window.wait_for(OUTCOME)
        assert window.text("#answer") == HOSTILE
        assert window.all("#answer img, #answer script, #answer b") == []
        assert window.driver.title == title


READ_TRACES = """
const { Aligner, tokensOf, sourceOf } = await import("/playground/js/data/trace.js");
return cases.map((chunks) => {
  const aligner = new Aligner();
  const tokens = chunks.map((chunk) => chunk.trace.flatMap(tokensOf));
  const found = chunks.flatMap((chunk, i) => aligner.push(chunk.text, tokens[i]));
  const parts = [...found, ...aligner.end()].map(([token, text]) => [text, token && sourceOf(token)]);
  return [parts.filter(([text]) => text), tokens.flat().map(sourceOf)];
});"""


def test_the_page_reads_traces_as_the_terminal_does(window: Browser, backend: ScriptedBackend) -> None:
    app = create_app(Api(backend, backend.tokenizer, ServiceSettings()), playground=Playground(PlaygroundOptions(True)))
    with listening(app) as window.base:
        window.open()
        found = window.module(f"const cases = {json.dumps([case['chunks'] for case in CASES])};{READ_TRACES}")
    for case, (parts, sources) in zip(CASES, found, strict=True):
        assert parts == case["parts"], case["name"]
        assert Counter(sources) == dict(case["tokens"]), case["name"]


class DecidingBackend(ScriptedBackend):
    """Reports ``decisions``, as a model does whose method is ``auto``."""

    decisions = DECISIONS

    def _stats(self, n_prompt: int, steps: list[int]) -> RequestStats:
        return msgspec.structs.replace(super()._stats(n_prompt, steps), decisions=self.decisions)


def test_an_answer_by_auto_shows_the_share_of_each_decision_with_its_meaning(window: Browser) -> None:
    backend = DecidingBackend(tiny_tokenizer(400))
    app = create_app(Api(backend, backend.tokenizer, ServiceSettings()), playground=Playground(PlaygroundOptions(True)))
    with listening(app) as window.base:
        window.logged()  # drops what earlier pages of this window logged
        window.open()
        send(window)
        rows = window.run(
            "return [...document.querySelectorAll('#decisions li')].map((li) => [li.textContent, li.title])"
        )
        assert rows == [
            ["off: no gain expected 30 (50 %)", "Plain decoding: no drafts are expected to save time."],
            ["text: drafts 12 (20 %)", "Drafts from the text."],
            ["all sources: trial 8 (13 %)", "Tries all sources, whatever they are expected to gain."],
            ["new:reason 10 (17 %)", ""],
        ]
        widths = window.run(
            "return [...document.querySelectorAll('#decisions rect')].map((one) => one.width.baseVal.value)"
        )
        whole = window.run("return document.querySelector('#decisions svg').clientWidth")
        assert widths == pytest.approx([whole * n / 60 for n in (30, 12, 8, 10)], rel=0.01)
        assert window.find("#decisions").is_displayed()
        backend.decisions = {}
        send(window)
        assert not window.find("#decisions").is_displayed()
    assert window.logged() == []
