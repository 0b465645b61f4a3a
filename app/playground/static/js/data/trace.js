// The page's reader of traces (docs/reference/http.md): gives each token its part of an answer's text and the source that drafted
// it. The terminal's reader, app/chat/answers.py, does the same; both are tested on the same cases.

const BYTES = "bytes:"; // before the bytes of a token that is part of a character, as in bytes:\\xe2\\x82
const encoder = new TextEncoder();

/** The bytes of a token, by its text. */
function bytesOf(text) {
  if (!text.startsWith(`${BYTES}\\x`)) return encoder.encode(text);
  return Uint8Array.from(text.slice(BYTES.length + 2).split("\\x"), (digits) => parseInt(digits, 16));
}

/** The tokens of a traced step, each with its text, its node (null: drawn by the target itself) and its step. */
export function tokensOf(step) {
  return step.tokens.map((token) => ({
    text: token.text,
    id: token.token_id,
    step: step.step,
    place: token.node,
    node: token.node === null ? null : step.nodes[token.node],
  }));
}

/** The source whose node a token is, or null: the target itself. */
export function sourceOf(token) {
  return token.node === null ? null : token.node.sources[0];
}

/**
 * Gives every token its part of the answer's text. The text is the truth: what tokens spell differs from it where a
 * character is made of several tokens (the last of them gets it), where a token has no text, and at a space that the
 * answer does not begin with. Text that comes before any token is passed on at once: the server sends no trace.
 */
export class Aligner {
  constructor() {
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // of the tokens' bytes
    this.text = ""; // that no token has yet
    this.waiting = []; // [token, what it spells] that have no text yet
    this.begun = false;
    this.traced = false; // whether a token has come
  }

  /** Take text and tokens of a chunk; the tokens whose text is known now, as [token, text]. */
  push(text, tokens) {
    this.text += text;
    for (const token of tokens) {
      this.waiting.push([token, this.decoder.decode(bytesOf(token.text), { stream: true })]);
    }
    this.traced ||= tokens.length > 0;
    if (!this.traced) return this.end();
    const found = [];
    while (this.waiting.length) {
      const spelt = this.#spelt();
      if (this.text.startsWith(spelt)) this.#give(found, 1, spelt.length);
      else if (!this.#passOver(found, spelt)) break;
    }
    return found;
  }

  /** Return the rest of the text at the end; it belongs to the last token that waits, else to none (null). */
  end() {
    const found = [];
    if (this.waiting.length) this.#give(found, this.waiting.length, this.text.length);
    else if (this.text) found.push([null, this.text]);
    this.text = "";
    return found;
  }

  /** The text of the first token that waits, without a space that the answer does not begin with. */
  #spelt() {
    const [[, spelt]] = this.waiting;
    const bare = spelt.trimStart();
    return !this.begun && bare && !this.text.startsWith(spelt) && this.text.startsWith(bare) ? bare : spelt;
  }

  /** Pass over tokens that have no text, up to one that has; false: more text must come first. */
  #passOver(found, spelt) {
    if (spelt.startsWith(this.text)) return false;
    for (let i = 1; i < this.waiting.length; i += 1) {
      const [, later] = this.waiting[i];
      const at = later ? this.text.indexOf(later) : -1;
      if (at >= 0) {
        this.#give(found, i, at);
        return true;
      }
    }
    return false;
  }

  /** The last of the first `n` tokens gets `length` characters. */
  #give(found, n, length) {
    const text = this.text.slice(0, length);
    this.text = this.text.slice(length);
    this.begun ||= length > 0;
    this.waiting.splice(0, n).forEach(([token], i) => found.push([token, i === n - 1 ? text : ""]));
  }
}
