// Server-sent events of an answer.

/** Cuts a text that comes in parts into the data of its events. */
export class EventCutter {
  constructor() {
    this.rest = "";
  }

  /** The data of the events that are complete now. */
  push(text) {
    const parts = (this.rest + text).split("\n\n");
    this.rest = parts.pop();
    const found = [];
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) found.push(lines.map((line) => line.slice(5).trimStart()).join("\n"));
    }
    return found;
  }
}

/**
 * The chunks of a streamed answer, as objects: a list for every part that the network delivers.
 * Ends at `[DONE]`; throws an Error if the stream ends before it, or with an error of the server.
 */
export async function* chunksOf(response) {
  const cutter = new EventCutter();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the answer broke off; send the request again");
      const chunks = [];
      let ends = false;
      for (const data of cutter.push(value)) {
        if (data === "[DONE]") {
          ends = true;
          break;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        chunks.push(chunk);
      }
      if (chunks.length) yield chunks;
      if (ends) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
