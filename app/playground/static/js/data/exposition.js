// Prometheus's text of metrics (exposition format 0.0.4). Knows no page.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { n: "\n", '"': '"', "\\": "\\" };
const SPECIAL = { "+Inf": Infinity, "-Inf": -Infinity, NaN };

function unescaped(text) {
  return text.replace(/\\(.)/g, (whole, letter) => ESCAPED[letter] ?? whole);
}

/** The samples of a text as {name, labels, value}, in order. Lines that are none are passed over. */
export function parsed(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const [, name, inner = "", number] = found;
    const labels = {};
    for (const [, label, value] of inner.matchAll(LABEL)) labels[label] = unescaped(value);
    samples.push({ name, labels, value: SPECIAL[number] ?? Number(number) });
  }
  return samples;
}

/** One look at the metrics, at a time in milliseconds. */
export class Scrape {
  constructor(text, at) {
    this.at = at;
    this.byName = new Map();
    for (const sample of parsed(text)) {
      const same = this.byName.get(sample.name);
      if (same) same.push(sample);
      else this.byName.set(sample.name, [sample]);
    }
  }

  /** The samples of a metric that have these labels. */
  all(name, labels = {}) {
    const wanted = Object.entries(labels);
    return (this.byName.get(name) ?? []).filter((one) => wanted.every(([label, value]) => one.labels[label] === value));
  }

  /** Their sum; 0 where there is none. */
  sum(name, labels = {}) {
    return this.all(name, labels).reduce((sum, sample) => sum + sample.value, 0);
  }

  /** Sums of a metric by what `key` makes of the labels. */
  by(name, key, labels = {}) {
    const sums = new Map();
    for (const sample of this.all(name, labels)) {
      const place = key(sample.labels);
      sums.set(place, (sums.get(place) ?? 0) + sample.value);
    }
    return sums;
  }
}
