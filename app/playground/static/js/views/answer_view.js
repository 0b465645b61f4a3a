// The text of an answer, token by token, each in the colour of the source that drafted it.

import { colourOf } from "./colours.js";
import { html } from "./dom.js";
import { sourceOf } from "../data/trace.js";

const KEYS = {
  ArrowRight: (view, i) => i + 1,
  ArrowLeft: (view, i) => i - 1,
  ArrowDown: (view, i) => view.ofNextStep(i, 1),
  ArrowUp: (view, i) => view.ofNextStep(i, -1),
  Home: () => 0,
  End: (view) => view.tokens.length - 1,
};

/**
 * Shows tokens in `box`, which can be reached by Tab; in it, arrow keys go from token to token.
 * `card` shows what is known of one token; `onStep` is told the number of a step that was chosen.
 */
export class AnswerView {
  constructor(box, card, onStep = () => {}) {
    this.box = box;
    this.card = card;
    this.onStep = onStep;
    this.tokens = []; // that have text, in order
    this.spans = [];
    this.current = -1;
    const indexOf = (event) => {
      const span = event.target.closest?.(".token");
      return span ? Number(span.dataset.index) : -1;
    };
    box.addEventListener("mouseover", (event) => this.#point(indexOf(event)));
    box.addEventListener("mouseleave", () => card.hide());
    box.addEventListener("focusout", () => card.hide());
    box.addEventListener("click", (event) => this.#choose(indexOf(event)));
    box.addEventListener("keydown", (event) => this.#key(event));
    this.clear();
  }

  clear() {
    this.tokens = [];
    this.spans = [];
    this.current = -1;
    this.box.replaceChildren();
    this.box.tabIndex = 0;
    this.card.hide();
  }

  /** Append what `Generation.take` gave. */
  append(pieces) {
    const added = document.createDocumentFragment();
    for (const [token, text] of pieces) {
      if (!text) continue;
      if (token === null) {
        added.append(text);
        continue;
      }
      const span = html("span", { class: `token ${colourOf(sourceOf(token))}`, "data-index": this.spans.length }, text);
      this.tokens.push(token);
      this.spans.push(span);
      added.append(span);
    }
    this.box.append(added);
  }

  /** Mark the tokens of a step; null: none. */
  mark(step) {
    this.spans.forEach((span, i) => span.classList.toggle("of-step", this.tokens[i].step === step));
  }

  /** Index of the first token of the step that follows, or precedes, that of token `i`. */
  ofNextStep(i, direction) {
    const step = this.tokens[Math.max(i, 0)]?.step;
    let j = Math.max(i, 0);
    while (j >= 0 && j < this.tokens.length && this.tokens[j].step === step) j += direction;
    if (j < 0) return 0;
    while (direction < 0 && j > 0 && this.tokens[j - 1].step === this.tokens[j].step) j -= 1;
    return j;
  }

  #point(i) {
    if (i < 0) this.card.hide();
    else this.card.show(this.tokens[i], this.spans[i]);
  }

  #choose(i) {
    if (i < 0 || getSelection().toString()) return;
    this.#focus(i);
    this.onStep(this.tokens[i].step);
  }

  #key(event) {
    if (!this.spans.length || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" && this.current >= 0) {
      this.onStep(this.tokens[this.current].step);
      event.preventDefault();
    } else if (event.key in KEYS) {
      this.#focus(Math.min(Math.max(KEYS[event.key](this, this.current), 0), this.spans.length - 1));
      event.preventDefault();
    }
  }

  #focus(i) {
    this.spans[this.current]?.removeAttribute("tabindex");
    this.current = i;
    const span = this.spans[i];
    this.box.tabIndex = -1; // Tab goes to the token, and from there out of the answer
    span.tabIndex = 0;
    span.setAttribute("role", "button");
    span.setAttribute("aria-label", this.card.words(this.tokens[i]));
    span.focus();
    this.card.show(this.tokens[i], span);
  }
}
