// Which colour is whose: the sources of a page get them in the order in which they first draft a token, and keep them,
// so that a source has one colour in all answers of a race. The hues have the order of `spectra generate --color`.

const HUES = 12;
const places = new Map(); // source -> its place

/** The class of a source's colour; null (the target itself) has none. */
export function colourOf(source) {
  if (source === null) return "own";
  if (!places.has(source)) places.set(source, places.size % HUES);
  return `hue-${places.get(source)}`;
}
