// What is known of one token, in a card beside it.

import { colourOf } from "./colours.js";
import { fixed, html, visible } from "./dom.js";
import { sourceOf } from "../data/trace.js";

const GAP = 8; // pixels

function origin(token) {
  if (token.node) return `drafted by ${token.node.sources[0]}`;
  return token.step === 0 ? "drawn by the target behind the prompt" : "drawn by the target: the step's bonus token";
}

function facts(token) {
  const found = [["step", String(token.step)]];
  if (!token.node) return found;
  found.push(["depth", String(token.node.depth)]);
  const estimate = token.node.probability;
  found.push(["estimated", estimate === null ? "no estimate" : `${fixed(estimate * 100, estimate < 0.1 ? 1 : 0)} %`]);
  found.push(["proposed by", token.node.sources.join(", ")]);
  return found;
}

/** The card; one for a page. */
export class Card {
  constructor(element) {
    this.element = element;
    addEventListener("scroll", () => this.hide(), { passive: true });
  }

  /** All of it in one line, for those who hear it. */
  words(token) {
    const said = facts(token).map(([name, value]) => `${name} ${value}`);
    return [visible(token.text), origin(token), ...said].join(", ");
  }

  /** Show a token's beside the element that shows the token. */
  show(token, beside) {
    const rows = facts(token).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);
    this.element.replaceChildren(
      html("p", { class: "card-text" }, visible(token.text), html("span", { class: "quiet" }, ` token ${token.id}`)),
      html("p", {}, html("span", { class: `swatch ${colourOf(sourceOf(token))}` }), origin(token)),
      html("dl", {}, ...rows),
    );
    this.element.hidden = false;
    this.#place(beside.getClientRects()[0] ?? beside.getBoundingClientRect());
  }

  hide() {
    this.element.hidden = true;
  }

  #place(box) {
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const above = box.top - height - GAP;
    const left = Math.min(Math.max(GAP, box.left), document.documentElement.clientWidth - width - GAP);
    this.element.style.left = `${left}px`;
    this.element.style.top = `${above > GAP ? above : box.bottom + GAP}px`;
  }
}
