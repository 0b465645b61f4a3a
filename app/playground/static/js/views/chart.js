// A small chart over the last seconds: lines, or areas on top of each other.

import { fixed, html, svg } from "./dom.js";

const POINTS = 90; // one a second
const WIDTH = 300;
const HEIGHT = 90;
const STEPS = [1, 2, 3, 5];

/** The least round number that is not below a value. */
export function rounded(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return (STEPS.find((step) => step * power >= value) ?? 10) * power;
}

/** A path through values, 0 to 1, with gaps where there is none. */
function line(values) {
  let path = "";
  let open = false;
  values.forEach((value, i) => {
    if (value === null) {
      open = false;
      return;
    }
    const place = `${((i * WIDTH) / (POINTS - 1)).toFixed(1)} ${(HEIGHT * (1 - value)).toFixed(1)}`;
    path += open ? `L${place}` : `M${place}`;
    open = true;
  });
  return path;
}

/** An area between two rows of values, as one column a point. */
function area(below, above) {
  const unit = WIDTH / (POINTS - 1);
  return above
    .map((top, i) => {
      if (top === null || top === below[i]) return "";
      const y = (value) => (HEIGHT * (1 - value)).toFixed(1);
      return `M${(i * unit - unit / 2).toFixed(1)} ${y(below[i])}V${y(top)}h${(unit + 0.3).toFixed(1)}V${y(below[i])}z`;
    })
    .join("");
}

/**
 * A chart in a section of its own.
 *
 * `title`; `show(value)`: a value as text; `most`: of the axis, if it is always the same; `stacked`: areas;
 * `colour(name, place)`: the class of a series.
 */
export class Chart {
  constructor(parent, { title, show = (value) => fixed(value, 0), most = null, stacked = false, colour }) {
    this.show = show;
    this.most = most;
    this.stacked = stacked;
    this.colour = colour ?? ((name, place) => `hue-${place}`);
    this.history = []; // maps of a value by name
    this.names = [];
    this.axis = html("span", { class: "axis quiet" });
    const label = `${title}, the last ${POINTS} seconds`;
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    this.legend = html("ul", { class: "legend" });
    parent.append(html("section", { class: "chart panel" }, html("h2", {}, title), this.axis, this.picture, this.legend));
  }

  /** Add the values of a second, by name; null: none. */
  push(values) {
    this.history.push(values);
    if (this.history.length > POINTS) this.history.shift();
    for (const [name, value] of values) if (value !== null && !this.names.includes(name)) this.names.push(name);
    this.#draw();
  }

  #row(name) {
    const values = this.history.map((one) => one.get(name) ?? null);
    return [...Array(POINTS - values.length).fill(null), ...values];
  }

  #draw() {
    const rows = this.names.map((name) => this.#row(name));
    const tops = this.stacked ? [this.#sums(rows)] : rows;
    const most = this.most ?? rounded(Math.max(0, ...tops.flat().map((value) => value ?? 0)));
    const paths = this.stacked ? this.#areas(rows, most) : this.#lines(rows, most);
    const middle = svg("path", { class: "grid", d: `M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}` });
    this.picture.replaceChildren(middle, ...paths);
    this.axis.textContent = this.show(most);
    this.legend.replaceChildren(
      ...this.names.map((name, place) => {
        const value = this.history.at(-1).get(name) ?? null;
        const shown = html("strong", {}, ` ${value === null ? "–" : this.show(value)}`);
        return html("li", {}, html("span", { class: `swatch ${this.colour(name, place)}` }), name, shown);
      }),
    );
  }

  #sums(rows) {
    return Array.from({ length: POINTS }, (_, i) => rows.reduce((sum, row) => sum + (row[i] ?? 0), 0));
  }

  #lines(rows, most) {
    const share = (value) => (value === null ? null : Math.min(1, value / most));
    return rows.map((row, i) => svg("path", { class: `line ${this.colour(this.names[i], i)}`, d: line(row.map(share)) }));
  }

  #areas(rows, most) {
    let below = Array(POINTS).fill(0);
    return rows.map((row, i) => {
      const above = row.map((value, place) => (value === null ? null : Math.min(1, below[place] + value / most)));
      const path = svg("path", { class: `area ${this.colour(this.names[i], i)}`, d: area(below, above) });
      below = above.map((value, place) => value ?? below[place]);
      return path;
    });
  }
}
