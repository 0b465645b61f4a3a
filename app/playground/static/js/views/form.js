// What a request asks for, as the form has it; and the examples that fill it.

import { byId, html } from "./dom.js";

const DEFAULTS = { prompt: "", temperature: 0, seed: 1, maxTokens: 256, prediction: "", tools: "", schema: "", method: "" };
// Joined, the last two are what drafts best without a trained drafter; the first is for a predicted output.
const MIXES = [["suffix", "token-recycling"], ["prediction", "suffix", "token-recycling"]];
const MOST_TOKENS = 2048; // of the slider; the server has its own limit

const number = (id) => Number(byId(id).value);

/** Methods in the order of the choosers: mixes, the server's own method, plain decoding, then the server's order. */
export function choices(speculative) {
  const { method, methods } = speculative;
  const mixes = MIXES.filter((names) => names.every((name) => methods.includes(name))).map((names) => names.join("+"));
  const plain = methods.filter((name) => name === "autoregressive");
  return [...new Set([...mixes, method, ...plain, ...methods])];
}

/** Fill a chooser of methods. */
export function fillMethods(select, methods, chosen) {
  select.replaceChildren(...methods.map((name) => html("option", { value: name, selected: name === chosen }, name)));
}

function showValue(id) {
  byId(`${id}-value`).value = byId(id).value;
}

const SLIDERS = ["temperature", "max-nodes", "max-tokens"];

/** Keeps the form. */
export class Form {
  constructor() {
    for (const id of SLIDERS) byId(id).addEventListener("input", () => showValue(id));
    byId("new-seed").addEventListener("click", () => {
      byId("seed").value = String(Math.floor(Math.random() * 1e6));
    });
    this.room = DEFAULTS.maxTokens;
    this.fill(DEFAULTS);
  }

  /** Fit the form to what the server says of its model. */
  fit(model) {
    const { max_nodes: usual, limit_nodes: most } = model.speculative;
    const nodes = byId("max-nodes");
    this.usualNodes = Math.max(1, usual);
    nodes.max = String(Math.max(1, most));
    nodes.value = String(this.usualNodes);
    const tokens = byId("max-tokens");
    tokens.max = String(Math.min(MOST_TOKENS, model.max_model_len));
    this.room = Math.floor(model.max_model_len / 2); // the other half is for the prompt
    tokens.value = String(Math.min(tokens.value, this.room));
    for (const id of SLIDERS) showValue(id);
    const methods = choices(model.speculative);
    fillMethods(byId("method"), methods, methods[0]);
    this.#choose(this.wanted);
  }

  /** Show the examples as buttons, and fill the form with the first. */
  offer(examples) {
    const buttons = examples.map((example) => {
      const button = html("button", { type: "button", class: "chip", "aria-pressed": "false" }, example.title);
      button.addEventListener("click", () => {
        this.fill({ ...DEFAULTS, ...example });
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      });
      return button;
    });
    byId("examples").replaceChildren(...buttons);
    buttons[0]?.click();
  }

  fill(fields) {
    byId("prompt").value = fields.prompt;
    byId("temperature").value = String(fields.temperature);
    byId("seed").value = String(fields.seed);
    byId("max-tokens").value = String(Math.min(fields.maxTokens, this.room));
    byId("prediction").value = fields.prediction;
    byId("tools").value = fields.tools ? JSON.stringify(fields.tools, null, 2) : "";
    byId("schema").value = fields.schema ? JSON.stringify(fields.schema, null, 2) : "";
    byId("options").open = Boolean(fields.prediction || fields.tools || fields.schema);
    for (const id of SLIDERS) showValue(id);
    this.wanted = fields.method;
    this.#choose(fields.method);
  }

  /** Choose a method if there is such a choice, else the first. */
  #choose(method) {
    const select = byId("method");
    const found = [...select.options].findIndex((option) => option.value === method);
    select.selectedIndex = select.options.length ? Math.max(found, 0) : -1;
  }

  /** The fields of a request; throws an Error that says what is wrong. */
  read() {
    const prompt = byId("prompt").value;
    if (!prompt.trim()) throw new Error("The prompt is empty.");
    const seed = number("seed");
    if (!Number.isSafeInteger(seed) || byId("seed").value === "") throw new Error("The seed must be a whole number.");
    return {
      prompt,
      seed,
      temperature: number("temperature"),
      maxNodes: number("max-nodes") === this.usualNodes ? null : number("max-nodes"), // null: the method's default
      maxTokens: number("max-tokens"),
      prediction: byId("prediction").value,
      tools: jsonOf("tools", "Tools", "an array of functions", Array.isArray)?.map(asTool),
      toolRequired: byId("tool-required").checked,
      schema: jsonOf("schema", "JSON schema", "an object", isObject),
    };
  }

  get method() {
    return byId("method").value;
  }

  /** "one" or "race". */
  get mode() {
    return document.querySelector("input[name=mode]:checked").value;
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A tool of a request; a function by itself is accepted too. */
function asTool(tool) {
  return tool.type ? tool : { type: "function", function: tool };
}

/** The JSON in a field, null if it is empty; throws an Error that names the field where `fits` is false. */
function jsonOf(id, name, what, fits) {
  const text = byId(id).value;
  if (!text.trim()) return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: this is not JSON: ${error.message}`);
  }
  if (!fits(value)) throw new Error(`${name}: this must be ${what}.`);
  return value;
}
