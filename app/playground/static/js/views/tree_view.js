// The tree of a step as a picture: the accepted path along the top, what was rejected below, probes dashed.

import { colourOf } from "./colours.js";
import { fixed, svg, visible } from "./dom.js";
import { layout } from "../data/tree_layout.js";

const HEIGHT = 20; // of a label
const SIGNS = { accepted: "accepted", rejected: "rejected", probe: "probe", bonus: "bonus token", root: "before the step" };

function kindOf(box) {
  if (box.bonus) return "bonus";
  if (box.node === null) return "root";
  if (box.node.probe) return "probe";
  return box.node.accepted ? "accepted" : "rejected";
}

function words(box) {
  const { node } = box;
  const parts = [box.label, SIGNS[kindOf(box)]];
  if (node) {
    parts.push(`depth ${node.depth}`, `proposed by ${node.sources.join(", ")}`);
    if (node.probability !== null) parts.push(`estimated ${fixed(node.probability * 100, 1)} %`);
  }
  return parts.join(", ");
}

function edge(box) {
  const from = { x: box.parent.x + box.parent.width, y: box.parent.y + HEIGHT / 2 };
  const to = { x: box.x, y: box.y + HEIGHT / 2 };
  const middle = to.x - 11;
  const path = `M${from.x} ${from.y}H${middle - 6}C${middle} ${from.y} ${middle - 4} ${to.y} ${middle + 4} ${to.y}H${to.x}`;
  const straight = `M${from.x} ${from.y}H${to.x}`;
  return svg("path", { class: `edge ${kindOf(box)}`, d: from.y === to.y ? straight : path });
}

function picture(box) {
  const kind = kindOf(box);
  const hue = box.node ? colourOf(box.node.sources[0]) : "own";
  return svg(
    "g",
    { class: `node ${kind} ${hue}`, transform: `translate(${box.x} ${box.y})` },
    svg("title", {}, words(box)),
    svg("rect", { width: box.width, height: HEIGHT, rx: 6 }),
    svg("text", { x: box.width / 2, y: 14 }, box.label),
  );
}

/** How many nodes of a step there are of each kind. */
export function countsOf(step) {
  const accepted = step.nodes.filter((node) => node.accepted).length;
  const probes = step.nodes.filter((node) => node.probe).length;
  return { accepted, probes, rejected: step.nodes.length - accepted - probes };
}

/** One sentence about a step. */
export function summary(step) {
  const { accepted, probes, rejected } = countsOf(step);
  if (step.step === 0) return "Step 0 read the prompt and drew the first token.";
  if (!step.nodes.length) return `Step ${step.step} had no draft: the target drew one token.`;
  const more = probes ? `, ${probes} were probes` : "";
  const nodes = step.nodes.length === 1 ? "1 node" : `${step.nodes.length} nodes`;
  return `Step ${step.step} scored ${nodes} in one forward: ${accepted} accepted, ${rejected} rejected${more}.`;
}

/** The picture of a step; `before` is the text of the last token before it. */
export function treePicture(step, before) {
  const { boxes, width, height } = layout(step, before, visible);
  const attributes = { class: "tree", role: "img", "aria-label": summary(step), width, height, viewBox: `0 0 ${width} ${height}` };
  // Edges of what was rejected lie below those of the accepted path.
  const edges = boxes.filter((box) => box.parent).sort((one, other) => onPath(one) - onPath(other));
  return svg("svg", attributes, ...edges.map(edge), ...boxes.map(picture));
}

function onPath(box) {
  return Number(box.bonus || Boolean(box.node?.accepted));
}
