// The same prompt and seed by two or three methods, side by side: who is first, and whether all wrote the same.

import { byId, drawn } from "../views/dom.js";
import { choices, fillMethods } from "../views/form.js";
import { Racer } from "./racer.js";
import { bodyOf, Generation } from "../data/generation.js";

const FAVOURITES = ["autoregressive", "suffix+token-recycling", "auto"];
const NONE = "no third method";

/** A salt that no other request has, so that racers share no cached prefix and no draft. */
function salt() {
  return Array.from({ length: 4 }, () => Math.random().toString(36).slice(2)).join("");
}

function listed(numbers) {
  return numbers.length < 2 ? numbers.join("") : `${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}`;
}

/** What can be said of answers that have ended: {same: true, false or null (nothing can be said), text}. */
export function verdict(generations) {
  const failed = generations.find((one) => one.state === "failed");
  if (failed) return { same: null, text: `No verdict: ${failed.error}` };
  if (generations.some((one) => one.state !== "done")) return { same: null, text: "No verdict: the race was stopped." };
  const texts = new Set(generations.map((one) => one.text + JSON.stringify([one.reasoning, one.calls])));
  if (texts.size > 1) return { same: false, text: "The texts differ. With one seed they should not: please report it." };
  const forwards = generations.map((one) => one.figures.forwards);
  const { tokens } = generations[0].figures;
  const counted = forwards.every(Number.isInteger) ? `, in ${listed(forwards)} forwards` : "";
  return { same: true, text: `Identical texts: ${generations.length} methods wrote the same ${tokens} tokens${counted}.` };
}

/** The panel of a race. */
export class Race {
  constructor(card, steps) {
    const templates = [...document.querySelectorAll(".racer")];
    this.racers = templates.map((element) => new Racer(element, card, (racer, step) => this.#open(racer, step)));
    this.steps = steps;
    this.opened = null;
    this.running = [];
    this.ask = drawn(() => this.#draw());
  }

  /** Offer the methods of a model. */
  fit(model) {
    const methods = choices(model.speculative);
    const firsts = [...new Set([...FAVOURITES.filter((name) => methods.includes(name)), ...methods])];
    this.racers.forEach((racer, i) => {
      const optional = i === this.racers.length - 1;
      fillMethods(racer.chooser, optional ? [...methods, NONE] : methods, firsts[i] ?? (optional ? NONE : methods[0]));
    });
  }

  /** Tell the racer whose step is shown which it is. */
  mark(step) {
    for (const racer of this.racers) racer.view.mark(racer === this.opened ? step : null);
  }

  /** Run the race; resolves to one sentence about it. */
  async run(model, fields) {
    this.steps.clear();
    byId("verdict").textContent = "";
    byId("verdict").className = "verdict";
    const taking = this.racers.filter((racer) => racer.chooser.value !== NONE);
    for (const racer of this.racers) racer.begin(null);
    this.running = taking.map((racer) => {
      const own = { ...fields, salt: salt() };
      const body = bodyOf(model.id, own, racer.chooser.value, model.speculative.trace);
      racer.begin(new Generation(body, this.ask));
      return racer;
    });
    const generations = taking.map((racer) => racer.generation);
    if (byId("in-turn").checked) {
      for (const generation of generations) if (!this.stopped(generations)) await generation.run();
    } else {
      await Promise.all(generations.map((generation) => generation.run()));
    }
    this.ask.now();
    for (const racer of taking) racer.end();
    const { same, text } = verdict(generations);
    byId("verdict").textContent = text;
    byId("verdict").className = `verdict ${same === true ? "same" : same === false ? "different" : "none"}`;
    return text;
  }

  stopped(generations) {
    return generations.some((one) => one.state === "stopped");
  }

  stop() {
    for (const racer of this.running) racer.generation.stop();
  }

  #draw() {
    // Once one has ended, all are measured against its length; until then against the one that leads.
    const most = Math.max(1, ...this.running.map((racer) => racer.generation.figures?.tokens ?? 0));
    for (const racer of this.running) racer.draw(most);
  }

  #open(racer, step) {
    this.opened = racer;
    this.steps.open(racer.generation.steps, step);
  }
}
