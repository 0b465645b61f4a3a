// What is counted while an answer comes. Knows no page, and no clock but the times that it is given (milliseconds).

/** Counts of one answer. A forward is a step of the target after the one that read the prompt. */
export class Figures {
  constructor(startedAt) {
    this.startedAt = startedAt;
    this.firstAt = null; // when the first tokens came
    this.lastAt = startedAt;
    this.tokens = 0;
    this.atFirst = 0; // tokens that came with the prompt's step
    this.forwards = null; // null: not known yet
    this.bySource = new Map(); // source -> tokens; null: the target itself
    this.drafted = null; // nodes
    this.decisions = null; // "arm:reason" -> steps; of an answer by `auto` that has ended
  }

  /** Count a traced step. */
  step(step, at) {
    this.#arrived(step.tokens.length, at);
    this.forwards = this.forwards === null ? 0 : this.forwards + 1;
    this.drafted = (this.drafted ?? 0) + step.nodes.length;
    for (const token of step.tokens) {
      const source = token.node === null ? null : step.nodes[token.node].sources[0];
      this.bySource.set(source, (this.bySource.get(source) ?? 0) + 1);
    }
  }

  /** Count tokens by the server's word, where no trace tells them. */
  total(tokens, at) {
    if (tokens > this.tokens) this.#arrived(tokens - this.tokens, at);
  }

  /** Take the server's final figures. */
  finish(speculative, usage) {
    if (usage) this.tokens = usage.completion_tokens;
    if (speculative) {
      this.forwards = speculative.num_spec_steps ?? this.forwards;
      this.drafted = speculative.num_draft_tokens ?? this.drafted;
      this.decisions = speculative.decisions ?? null;
    }
  }

  /** Tokens that forwards after the prompt's brought, per forward; NaN before there is one. */
  get perForward() {
    return this.forwards ? (this.tokens - this.atFirst) / this.forwards : NaN;
  }

  /** Tokens per second after the first; NaN before the second. */
  get perSecond() {
    const seconds = (this.lastAt - (this.firstAt ?? this.lastAt)) / 1000;
    return seconds > 0 ? (this.tokens - this.atFirst) / seconds : NaN;
  }

  /** Seconds from the start to the newest token. */
  get seconds() {
    return (this.lastAt - this.startedAt) / 1000;
  }

  #arrived(n, at) {
    if (this.firstAt === null) {
      this.firstAt = at;
      this.atFirst = n;
    }
    this.tokens += n;
    this.lastAt = at;
  }
}
