// How an answer goes and how it ended, in words and figures: for one answer and for each method of a race.

import { fixed, html } from "./dom.js";

const ENDS = { stop: "", length: " It was cut at its limit of tokens.", tool_calls: " It calls a tool." };

/** Counters of an answer: their names, and their texts by a `Figures`. */
export const COUNTERS = {
  perForward: ["tokens per forward", (figures) => fixed(figures.perForward, 2)],
  perSecond: ["tokens per second", (figures) => fixed(figures.perSecond, 0)],
  tokens: ["tokens", (figures) => String(figures.tokens)],
  forwards: ["forwards", (figures) => fixed(figures.forwards ?? NaN, 0)],
  seconds: ["seconds", (figures) => fixed(figures.seconds, 1)],
};

/** A list of counters, and a function that shows the figures in it. */
export function counters(element, names) {
  const values = names.map((name) => html("dd", { "data-counter": name }, "–"));
  element.replaceChildren(
    ...names.map((name, i) => html("div", { class: "counter" }, values[i], html("dt", {}, COUNTERS[name][0]))),
  );
  return (figures) => {
    names.forEach((name, i) => {
      const text = figures ? COUNTERS[name][1](figures) : "–";
      if (values[i].textContent !== text) values[i].textContent = text;
    });
  };
}

/** One sentence about an answer that has ended. */
export function outcome(generation) {
  const { figures, state } = generation;
  if (state === "waiting") return "It was not asked.";
  if (state === "failed") return `It failed: ${generation.error}`;
  const forwards = figures.forwards === null ? "" : ` in ${figures.forwards} forwards`;
  if (state === "stopped") return `Stopped after ${figures.tokens} tokens${forwards}.`;
  return `Done: ${figures.tokens} tokens${forwards}.${ENDS[generation.finish] ?? ""}`;
}

/** Calls of tools, as elements: names and arguments as the model gave them. */
export function callElements(calls) {
  return calls.map((call) => html("li", {}, html("strong", {}, call.name || "…"), html("pre", {}, call.arguments)));
}
