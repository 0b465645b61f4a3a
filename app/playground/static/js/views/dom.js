// Elements. Text is only ever inserted as text nodes: nothing that a model wrote is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element; attributes that are null, undefined or false are left out, `onclick` and the like are listeners. */
export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** The element with an id. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element has the id ${id}`);
  return found;
}

const DRAW_MS = 40; // from one drawing to the next: text flows, and a fast answer leaves time for all else

/** Calls `work` in a frame, at most every `DRAW_MS`, however often the returned function is called; `now()`: at once. */
export function drawn(work) {
  let asked = false;
  let last = -DRAW_MS;
  const run = () => {
    asked = false;
    last = performance.now();
    work();
  };
  const frame = () => requestAnimationFrame(() => asked && run());
  const ask = () => {
    if (asked) return;
    asked = true;
    setTimeout(frame, Math.max(0, last + DRAW_MS - performance.now()));
  };
  ask.now = run;
  return ask;
}

/** A number with so many digits behind the point; an en dash where there is none. */
export function fixed(value, digits) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

/** Text of a token as a label: white space is shown as marks, long ones are cut. */
export function visible(text, most = 40) {
  const marked = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  const letters = [...marked];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : marked;
}
