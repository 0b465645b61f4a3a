// All steps of an answer as a row of bars, as high as the tokens that each of them brought; and the tree of one of them.

import { byId, html, svg } from "./dom.js";
import { summary, treePicture } from "./tree_view.js";

const BAR = 7; // pixels
const HEIGHT = 44;
const MOST_BARS = 4000; // of the picture; an answer has no more steps than tokens

/** The panel of steps. `onStep` is told the step that is shown. */
export class StepsView {
  constructor(onStep) {
    this.onStep = onStep;
    this.steps = [];
    this.shown = -1;
    this.chosen = null; // the mark of the step that is shown
    this.panel = byId("steps");
    this.bars = byId("bars");
    this.tree = byId("tree");
    this.said = byId("step-summary");
    byId("step-before").addEventListener("click", () => this.show(this.shown - 1));
    byId("step-after").addEventListener("click", () => this.show(this.shown + 1));
    this.bars.addEventListener("click", (event) => {
      const picture = event.target.closest("svg");
      if (picture) this.show(Math.floor((event.clientX - picture.getBoundingClientRect().left) / BAR));
    });
  }

  clear() {
    this.steps = [];
    this.shown = -1;
    this.panel.hidden = true;
    this.bars.replaceChildren();
    this.tree.replaceChildren();
  }

  /** Take all steps of an answer that has ended, and show the one that accepted most. */
  take(steps) {
    this.#take(steps);
    let best = 0;
    this.steps.forEach((step, i) => {
      if (step.tokens.length > this.steps[best].tokens.length) best = i;
    });
    this.show(best, { quiet: true });
  }

  /** Show one step of an answer. */
  open(steps, number) {
    if (this.steps.length !== steps.length || this.steps[0] !== steps[0]) this.#take(steps);
    this.show(this.steps.findIndex((step) => step.step === number));
  }

  #take(steps) {
    this.clear();
    this.steps = steps.slice(0, MOST_BARS);
    this.panel.hidden = !this.steps.length;
    if (this.steps.length) this.#drawBars();
  }

  /** Show a step's tree. */
  show(place, { quiet = false } = {}) {
    if (place < 0 || place >= this.steps.length) return;
    this.shown = place;
    this.bars.dataset.shown = String(place);
    this.chosen.setAttribute("x", place * BAR);
    byId("step-before").disabled = place === 0;
    byId("step-after").disabled = place === this.steps.length - 1;
    const step = this.steps[place];
    const before = place ? this.steps[place - 1].tokens.at(-1)?.text ?? "" : "";
    this.said.textContent = summary(step);
    this.tree.replaceChildren(
      step.nodes.length ? treePicture(step, before) : html("p", { class: "quiet" }, "No tree: nothing was drafted."),
    );
    this.tree.scrollTo(0, 0);
    if (!quiet) this.onStep(step.step);
  }

  /** Two shapes for all bars: an element for each would take a second at the end of a long answer. */
  #drawBars() {
    const most = Math.max(...this.steps.map((step) => step.tokens.length));
    const unit = (HEIGHT - 4) / most;
    let drafted = "";
    let own = "";
    this.steps.forEach((step, i) => {
      const n = step.tokens.filter((token) => token.node !== null).length;
      const middle = HEIGHT - unit * (step.tokens.length - n);
      own += `M${i * BAR + 1} ${HEIGHT}V${middle}h${BAR - 2}V${HEIGHT}z`;
      if (n) drafted += `M${i * BAR + 1} ${middle}v${-n * unit}h${BAR - 2}v${n * unit}z`;
    });
    const width = this.steps.length * BAR;
    const label = `Tokens of each of ${this.steps.length} steps, at most ${most}`;
    this.chosen = svg("rect", { class: "chosen", y: 0, width: BAR, height: HEIGHT });
    this.bars.replaceChildren(
      svg(
        "svg",
        { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label },
        this.chosen,
        svg("path", { class: "drafted", d: drafted }),
        svg("path", { class: "own", d: own }),
      ),
    );
  }
}
