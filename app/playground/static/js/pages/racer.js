// One method's part of a race.

import { AnswerView } from "../views/answer_view.js";
import { showDecisions } from "../views/decisions.js";
import { showLegend } from "../views/legend.js";
import { counters, outcome } from "../views/outcome.js";

/** A racer; `element` is its section of the page. `onStep` is told the racer and a step that was chosen in it. */
export class Racer {
  constructor(element, card, onStep) {
    const part = (name) => element.querySelector(`.racer-${name}`);
    this.element = element;
    this.chooser = element.querySelector("select");
    this.progress = part("progress");
    this.legend = part("legend");
    this.decisions = part("decisions");
    this.outcome = part("outcome");
    this.box = part("answer");
    this.view = new AnswerView(this.box, card, (step) => onStep(this, step));
    this.show = counters(part("counters"), ["perForward", "perSecond", "forwards", "seconds"]);
    this.generation = null;
    this.chooser.addEventListener("change", () => this.#name());
    this.#name();
  }

  /** Begin with an answer that has not been asked for yet; null: this racer takes no part. */
  begin(generation) {
    this.generation = generation;
    this.view.clear();
    this.show(null);
    this.#name();
    this.element.classList.toggle("idle", generation === null);
    this.progress.value = 0;
    this.outcome.textContent = "";
    this.legend.replaceChildren();
    showDecisions(this.decisions, null);
  }

  /** Show what has come; `most`: tokens of the racer that has most. */
  draw(most) {
    const { generation } = this;
    this.view.append(generation.take());
    this.show(generation.figures);
    this.outcome.textContent = generation.stream.note;
    this.progress.value = (generation.figures?.tokens ?? 0) / most;
    if (generation.traced && generation.figures) showLegend(this.legend, generation.figures.bySource);
    showDecisions(this.decisions, generation.figures?.decisions);
  }

  /** Say how it ended. */
  end() {
    this.outcome.textContent = outcome(this.generation);
  }

  #name() {
    const method = this.chooser.value;
    this.box.setAttribute("aria-label", `Answer by ${method}; arrow keys go from token to token`);
    this.progress.setAttribute("aria-label", `Progress of ${method}`);
  }
}
