// The chunks of an answer over as many connections as it takes: a server that keeps answers sends the rest of them.

import { getStream, post, remove } from "./api.js";
import { chunksOf, ConnectionLostError } from "./sse.js";

const GIVE_UP_MS = 60_000; // after the loss of a connection; also the longest Retry-After that counts
const FIRST_PAUSE_MS = 100; // between two attempts
const LONGEST_PAUSE_MS = 2000;

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

  /** Lists of chunks; throws the error that ended the answer early. In the end, the server deletes the answer. */
  async *chunks() {
    const stop = () => this.stop();
    addEventListener("pagehide", stop);
    try {
      for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
        try {
          const response = await this.#open();
          if (this.path !== null) this.#noteReconnected();
          for await (const chunks of chunksOf(response)) {
            this.#noteReconnected();
            this.hasBegun = true;
            for (const { id, eventId } of chunks) {
              if (eventId === undefined) continue; // as that of the usage, which comes again
              this.path = `/v1/streams/${encodeURIComponent(id)}`;
              this.lastEvent = eventId;
            }
            pause = FIRST_PAUSE_MS;
            yield chunks;
          }
          return;
        } catch (error) {
          if (!this.#mayContinue(error)) throw error;
          await new Promise((done) => {
            this.abort = done;
            setTimeout(done, Math.max(pause, Math.min(1000 * (error.retryAfter ?? 0), GIVE_UP_MS)));
          });
        }
      }
    } finally {
      removeEventListener("pagehide", stop);
      this.#delete();
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
    this.#delete();
  }

  #open() {
    const aborter = new AbortController();
    const { signal } = aborter;
    this.abort = () => aborter.abort();
    if (this.isStopped) this.abort();
    if (this.path === null) return post(this.endpoint, this.body, { signal });
    return getStream(this.path, { signal, more: { "Last-Event-ID": this.lastEvent } });
  }

  #delete() {
    if (this.path !== null) remove(this.path).catch(() => {}); // the server deletes it later
    this.path = null;
  }

  #noteReconnected() {
    if (this.lostAt === null) return;
    this.note = `reconnected after ${((performance.now() - this.lostAt) / 1000).toFixed(1)} s`;
    this.lostAt = null;
    this.onConnection();
  }

  /** Note that the connection is lost, if another one may bring the rest; before the first event, it asks again. */
  #mayContinue(error) {
    const now = performance.now();
    if (error.status === 404) this.path = null; // it is gone, and need not be deleted
    const isLost = error instanceof ConnectionLostError || error.status === 0;
    const isBusy = error.status === 429 || error.status >= 500;
    const isFirst = !this.hasBegun && this.body.stream_options.resumable;
    const isResent = isFirst && (isLost || (isBusy && this.lostAt !== null));
    const isRead = this.path !== null && (isLost || isBusy || error.name === "AbortError");
    const mayContinue = !this.isStopped && (isResent || isRead) && now - (this.lostAt ?? now) <= GIVE_UP_MS;
    this.lostAt = mayContinue ? (this.lostAt ?? now) : null;
    this.note = mayContinue ? "reconnecting …" : "";
    this.onConnection();
    return mayContinue;
  }
}
