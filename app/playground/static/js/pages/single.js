// One answer, with all that is known of it.

import { AnswerView } from "../views/answer_view.js";
import { byId, drawn } from "../views/dom.js";
import { bodyOf, Generation } from "../data/generation.js";
import { showDecisions } from "../views/decisions.js";
import { showLegend } from "../views/legend.js";
import { callElements, counters, outcome } from "../views/outcome.js";

/** The panel of one answer. */
export class Single {
  constructor(card, steps) {
    this.steps = steps;
    this.view = new AnswerView(byId("answer"), card, (step) => steps.open(this.generation.steps, step));
    this.show = counters(byId("counters"), ["perForward", "perSecond", "tokens", "forwards", "seconds"]);
    this.generation = null;
    this.ask = drawn(() => this.#draw());
    byId("drop").addEventListener("click", () => this.generation.stream.drop());
  }

  /** Tell the view which step is shown. */
  mark(step) {
    this.view.mark(step);
  }

  /** Ask, and show the answer as it comes; resolves to one sentence about it. */
  async run(model, fields, method) {
    this.view.clear();
    this.steps.clear();
    byId("calls").replaceChildren();
    byId("answer").setAttribute("aria-busy", "true");
    const body = bodyOf(model.id, fields, method, model.speculative.trace);
    const generation = new Generation(body, this.ask);
    this.generation = generation;
    this.#draw();
    await generation.run();
    this.ask.now();
    byId("answer").setAttribute("aria-busy", "false");
    if (generation.steps.length) {
      this.steps.take(generation.steps);
    }
    return outcome(generation);
  }

  stop() {
    this.generation?.stop();
  }

  #draw() {
    const { generation } = this;
    this.view.append(generation.take());
    this.show(generation.figures);
    byId("drop").disabled = !generation.isResumable;
    const { note } = generation.stream;
    if (byId("connection").textContent !== note) byId("connection").textContent = note;
    if (generation.calls.length) byId("calls").replaceChildren(...callElements(generation.calls));
    byId("reasoning").textContent = generation.reasoning;
    byId("legend").hidden = !generation.traced;
    if (generation.traced && generation.figures) showLegend(byId("legend"), generation.figures.bySource);
    showDecisions(byId("decisions"), generation.figures?.decisions);
  }
}
