// What `auto` decided about the steps of an answer: a bar of shares, and each share in words.

import { html, svg } from "./dom.js";

// Labels and explanations by "arm:reason" of speculators/auto/speculator.py, in the order of the bar.
const MEANINGS = {
  "off:unlikely": ["off: no gain expected", "Plain decoding: no drafts are expected to save time."],
  "off:budget": ["off: no budget", "Plain decoding: the budget for losses is spent, or only one token is left."],
  "off:price": ["off: measures a plain step", "Plain decoding: a plain step measures the price of plain steps."],
  "text:drafts": ["text: drafts", "Drafts from the text."],
  "text:nothing": ["text: no draft", "Asked the text, no node was worth it."],
  "text:trial": ["text: trial", "Tries the text, whatever it is expected to gain."],
  "all:drafts": ["all sources: drafts", "Drafts from all sources."],
  "all:nothing": ["all sources: no draft", "Asked all sources, no node was worth it."],
  "all:trial": ["all sources: trial", "Tries all sources, whatever they are expected to gain."],
};
const ABOUT =
  "Before each step, auto chooses plain decoding (off), drafts from the text alone, or drafts from all sources. " +
  "It drafts where drafts are expected to save time, and in short trials.";
const HEIGHT = 10; // pixels
const KEYS = Object.keys(MEANINGS);

/** [arm, label, explanation, steps] of all decisions of an answer; an unknown one is shown by its key, at the end. */
function shares(decisions) {
  const unknown = Object.keys(decisions).filter((key) => !(key in MEANINGS));
  const present = [...KEYS.filter((key) => decisions[key]), ...unknown];
  return present.map((key) => [key.split(":")[0], ...(MEANINGS[key] ?? [key, null]), decisions[key]]);
}

/** Show the counts of decisions ("arm:reason" -> steps) in `element`; null: the method decides nothing, hide it. */
export function showDecisions(element, decisions) {
  element.hidden = !decisions;
  if (!decisions) return;
  const rows = shares(decisions);
  const percent = 100 / rows.reduce((sum, [, , , n]) => sum + n, 0);
  const bar = svg("svg", { width: "100%", height: HEIGHT, "aria-hidden": "true" });
  let x = 0;
  for (const [arm, label, explanation, n] of rows) {
    const title = svg("title", {}, explanation ?? label);
    bar.append(svg("rect", { class: arm, x: `${x}%`, width: `${n * percent}%`, height: HEIGHT }, title));
    x += n * percent;
  }
  const items = rows.map(([arm, label, explanation, n]) =>
    html(
      "li",
      { title: explanation },
      html("span", { class: `arm ${arm}` }),
      label,
      html("span", { class: "quiet" }, ` ${n} (${Math.round(n * percent)} %)`),
    ),
  );
  const list = html("ul", { class: "legend", "aria-label": "Steps by what auto decided" }, ...items);
  element.replaceChildren(bar, list, html("p", { class: "quiet" }, ABOUT));
}
