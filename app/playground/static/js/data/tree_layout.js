// Where the nodes of a step's tree are drawn: depth to the right, branches below each other. Knows no page.

export const ROW = 26; // pixels from one branch to the next
export const GAP = 22; // between two depths
const CHAR = 7.4; // width of a character of the labels
const PADDING = 14; // inside a label, left and right together
const MOST_CHARS = 14; // of a label

/** The width of a label of so many characters. */
export function labelWidth(text) {
  return Math.max(26, [...text].length * CHAR + PADDING);
}

/**
 * The layout of `step.nodes`: the accepted path first, then what was most probable, so that the path is the top row.
 *
 * Returns `{boxes, width, height}`; a box is `{node, parent, label, x, y, width}`, in pixels; `parent` is a box or null.
 * The root, the last token before the step, is the first box (`node` null); the bonus token is the last (`bonus`).
 */
export function layout(step, rootText, label) {
  const children = new Map();
  step.nodes.forEach((node, i) => children.set(node.parent, [...(children.get(node.parent) ?? []), i]));
  const weight = (i) => (step.nodes[i].accepted ? 2 : step.nodes[i].probe ? -1 : 0) + (step.nodes[i].probability ?? 0);
  for (const group of children.values()) group.sort((one, other) => weight(other) - weight(one));

  const boxes = [];
  let rows = 0;
  const place = (i, parent, depth) => {
    const node = i < 0 ? null : step.nodes[i];
    const text = label(node === null ? rootText : node.text, MOST_CHARS);
    const box = { node, parent, label: text, depth, row: rows, width: labelWidth(text), bonus: false };
    boxes.push(box);
    const below = children.get(i) ?? [];
    const isEnd = (node === null || node.accepted) && !below.some((child) => step.nodes[child].accepted);
    const bonus = isEnd ? step.tokens.find((token) => token.node === null) : undefined;
    if (bonus) {
      const said = label(bonus.text, MOST_CHARS);
      boxes.push({ node: null, parent: box, label: said, depth: depth + 1, row: rows, width: labelWidth(said), bonus: true });
      if (below.length) rows += 1;
    }
    below.forEach((child, nth) => {
      if (nth) rows += 1;
      place(child, box, depth + 1);
    });
  };
  place(-1, null, 0);
  return positioned(boxes, rows + 1);
}

function positioned(boxes, rows) {
  const widths = [];
  for (const box of boxes) widths[box.depth] = Math.max(widths[box.depth] ?? 0, box.width);
  const starts = [2];
  widths.forEach((width, depth) => starts.push(starts[depth] + width + GAP));
  for (const box of boxes) {
    box.x = starts[box.depth];
    box.y = box.row * ROW + 4;
  }
  return { boxes, width: starts.at(-1) - GAP + 2, height: rows * ROW + 4 };
}
