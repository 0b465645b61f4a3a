// The chunks of an answer over as many connections as it takes: a server that keeps answers sends the rest of them.

import { getStream, post, remove, ServerError } from "./api.js";
import { BrokenOff, chunksOf } from "./sse.js";

const GIVE_UP_MS = 60_000; // after the loss of a connection
const FIRST_PAUSE_MS = 100; // between two attempts
const LONGEST_PAUSE_MS = 2000;

let isKept = false;

/** Ask for answers that are kept, if the server keeps any (`keeps_answers` of its settings). */
export function useKeptAnswers(keeps) {
  isKept = keeps;
}

/** Whether requests ask the server to keep their answers. */
export function areAnswersKept() {
  return isKept;
}

/** One streamed answer; `onConnection` is called when a connection is lost, and when the answer continues. */
export class AnswerStream {
  constructor(endpoint, body, onConnection) {
    this.endpoint = endpoint;
    this.body = body;
    this.onConnection = onConnection;
    this.hasBegun = false; // an event has come
    this.path = null; // of the kept answer; null: there is none, or no event has come
    this.lastEvent = null; // id
    this.lostAt = null; // milliseconds; null: there is a connection
    this.note = ""; // about the connection, in words
    this.isStopped = false;
    this.abort = () => {}; // ends what is awaited now
  }

  /** Lists of chunks; throws the error that ended the answer early. */
  async *chunks() {
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      try {
        const response = await this.#open();
        for await (const chunks of chunksOf(response)) {
          this.#arrived(chunks.at(-1));
          pause = FIRST_PAUSE_MS;
          yield chunks;
        }
        this.#found();
        return;
      } catch (error) {
        if (!this.#mayContinue(error)) throw error;
      }
      await new Promise((done) => {
        this.abort = done;
        setTimeout(done, pause);
      });
    }
  }

  /** Lose the connection, as a phone in a tunnel does. */
  drop() {
    this.abort();
  }

  /** Stop the answer, and delete it from the server. */
  stop() {
    this.isStopped = true;
    this.abort();
    if (this.path) remove(this.path).catch(() => {}); // it ends without a reader, too
  }

  #open() {
    const aborter = new AbortController();
    const { signal } = aborter;
    this.abort = () => aborter.abort();
    if (this.isStopped) this.abort();
    if (this.path === null) return post(this.endpoint, this.body, { signal });
    return getStream(this.path, { signal, more: { "Last-Event-ID": this.lastEvent } });
  }

  #arrived({ id, eventId }) {
    this.#found();
    this.hasBegun = true;
    if (eventId === undefined) return;
    this.path = `/v1/streams/${encodeURIComponent(id)}`;
    this.lastEvent = eventId;
  }

  #found() {
    if (this.lostAt === null) return;
    this.note = `reconnected after ${((performance.now() - this.lostAt) / 1000).toFixed(1)} s`;
    this.lostAt = null;
    this.onConnection();
  }

  /** Note that the connection is lost; whether another one may bring the rest. */
  #mayContinue(error) {
    if (this.isStopped || !this.#isLost(error)) return false;
    this.lostAt ??= performance.now();
    const isTooLate = performance.now() - this.lostAt > GIVE_UP_MS;
    this.note = isTooLate ? "" : "reconnecting …";
    this.onConnection();
    return !isTooLate;
  }

  /** Whether only the connection is lost; before the first event, the request is sent again. */
  #isLost(error) {
    const status = error instanceof ServerError ? error.status : null;
    const isBroken = error instanceof BrokenOff || status === 0;
    if (this.path === null) return isBroken && !this.hasBegun && Boolean(this.body.stream_options.resumable);
    return isBroken || error.name === "AbortError" || status === 429 || status >= 500;
  }
}
