// Server-sent events of an answer.

/** The connection ended before the answer did. */
export class ConnectionLostError extends Error {}

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
 * that of its event. Ends at `[DONE]`; throws ConnectionLostError if the stream ends before it, and an error of the
 * server after the chunks that came before.
 */
export async function* chunksOf(response) {
  const cutter = new EventCutter();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => ({ done: true }));
      if (done) throw new ConnectionLostError("the answer broke off; send the request again");
      const chunks = [];
      let end = null;
      for (const { id, data } of cutter.push(value)) {
        const chunk = data === "[DONE]" ? null : JSON.parse(data);
        if (chunk === null || chunk.error) {
          end = { error: chunk?.error };
          break;
        }
        chunks.push({ ...chunk, eventId: id });
      }
      if (chunks.length) yield chunks;
      if (end?.error) throw new Error(end.error.message);
      if (end) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
