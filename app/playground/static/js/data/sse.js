// Server-sent events of an answer.

/** The connection ended before the answer did. */
export class BrokenOff extends Error {}

/** Cuts a text that comes in parts into the id and data of its events. */
export class EventCutter {
  constructor() {
    this.rest = "";
  }

  /** The events that are complete now, as {id, data}; the id is undefined where there is none. */
  push(text) {
    const parts = (this.rest + text).split("\n\n");
    this.rest = parts.pop();
    const found = [];
    for (const part of parts) {
      const lines = part.split("\n");
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      const id = lines.find((line) => line.startsWith("id:"))?.slice(3).trim();
      if (data.length) found.push({ id, data: data.join("\n") });
    }
    return found;
  }
}

/**
 * The chunks of a streamed answer, as objects: a list for every part that the network delivers; `eventId` of a chunk is
 * that of its event. Ends at `[DONE]`; throws BrokenOff if the stream ends before it, and an error of the server.
 */
export async function* chunksOf(response) {
  const cutter = new EventCutter();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => ({ done: true }));
      if (done) throw new BrokenOff("the answer broke off; send the request again");
      const chunks = [];
      let ends = false;
      for (const { id, data } of cutter.push(value)) {
        if (data === "[DONE]") {
          ends = true;
          break;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        chunks.push({ ...chunk, eventId: id });
      }
      if (chunks.length) yield chunks;
      if (ends) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
