// Streams that ask the same again and again, and say whether the text was ever another one.

import { html } from "../views/dom.js";
import { choices } from "../views/form.js";
import { bodyOf, Generation } from "../data/generation.js";

const PROMPTS = ["Write a story about a fox that finds a lantern.", "Why is the sky blue?"];
const MOST_TOKENS = 256;
const TAIL = 90; // characters of the text that are shown
const PAUSE_MS = 500; // after a failure

/** One stream: its prompt and seed are always the same, so its text must be, whatever happens to the server. */
export class Repeated {
  constructor(number, onFailure) {
    this.seed = number + 1;
    this.prompt = PROMPTS[number % PROMPTS.length];
    this.onFailure = onFailure;
    this.reference = null; // the text of its first answer
    this.done = 0; // answers
    this.different = 0;
    this.failed = 0;
    this.runs = false;
    this.tail = html("span", { class: "tail" });
    this.said = html("span", { class: "said" });
    this.element = html("li", { class: "stream" }, html("strong", {}, `Stream ${number + 1}`), this.said, this.tail);
    this.#say();
  }

  /** Ask until `stop` is called; `resumable`: whether the server keeps answers. */
  async run(model, resumable) {
    this.runs = true;
    const [method] = choices(model.speculative);
    const fields = { prompt: this.prompt, temperature: 0.8, seed: this.seed, maxTokens: MOST_TOKENS, resumable };
    while (this.runs) {
      this.generation = new Generation(bodyOf(model.id, fields, method, false), (one) => this.#show(one));
      await this.generation.run();
      this.#judge(this.generation);
      if (this.generation.state === "failed") await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  }

  stop() {
    this.runs = false;
    this.generation?.stop();
  }

  #judge({ state, text, error }) {
    if (state === "done") {
      this.done += 1;
      this.reference ??= text;
      if (text !== this.reference) this.different += 1;
    } else if (state === "failed") {
      this.failed += 1;
      this.onFailure(error);
    }
    this.#say();
  }

  #say() {
    const same = this.different ? `${this.different} DIFFERENT` : "all the same text";
    const failures = this.failed ? `, ${this.failed} failed` : "";
    this.said.textContent = this.done ? `${this.done} answers, ${same}${failures}` : `no answer yet${failures}`;
    this.element.classList.toggle("different", this.different > 0);
    this.element.dataset.done = String(this.done);
    this.element.dataset.different = String(this.different);
    this.element.dataset.failed = String(this.failed);
  }

  #show({ text, stream }) {
    const isLost = stream.lostAt !== null;
    this.tail.textContent = isLost ? stream.note : text.slice(-TAIL).replaceAll("\n", " ");
  }
}
