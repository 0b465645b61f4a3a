// One streamed answer: its body, its chunks, and what they say, piece by piece.

import { AnswerStream } from "./answer_stream.js";
import { Figures } from "./figures.js";
import { Aligner, tokensOf } from "./trace.js";

const ENDPOINT = "/v1/chat/completions";

/** The body of a request; `fields` are the form's, `traced`: whether the server may tell traces to this page. */
export function bodyOf(model, fields, method, traced) {
  const speculative = { method };
  if (method !== "autoregressive" && fields.maxNodes) speculative.max_nodes = fields.maxNodes;
  if (traced) speculative.trace = true;
  const body = {
    model,
    messages: [{ role: "user", content: fields.prompt }],
    temperature: fields.temperature,
    seed: fields.seed,
    speculative,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: !traced },
  };
  if (fields.resumable) body.stream_options.resumable = true;
  if (fields.maxTokens) body.max_tokens = fields.maxTokens;
  // A method that does not draft from a prediction is not asked to: the server would refuse it.
  if (fields.prediction && readsPrediction(method)) body.prediction = { type: "content", content: fields.prediction };
  if (fields.tools) {
    const choice = fields.toolRequired ? "required" : "auto";
    Object.assign(body, { tools: fields.tools, tool_choice: choice, parallel_tool_calls: false });
  }
  if (fields.schema) {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: fields.schema } };
  }
  if (fields.salt) body.cache_salt = fields.salt;
  return body;
}

/** Whether drafts of a method come from a prediction. */
export function readsPrediction(method) {
  return method.split("+").some((name) => name === "auto" || name === "prediction");
}

/** An answer as it comes; `onChange` is called after every part. */
export class Generation {
  constructor(body, onChange) {
    this.body = body;
    this.traced = Boolean(body.speculative.trace);
    this.text = ""; // of the content
    this.reasoning = "";
    this.calls = []; // {name, arguments}, texts
    this.steps = []; // traced
    this.fresh = []; // [token or null, text] that the page has not shown yet
    this.figures = null;
    this.finish = null; // reason
    this.state = "waiting"; // then running, done, stopped or failed
    this.error = null;
    this.onChange = onChange;
    // Calls of tools and reasoning are cut out of the content: then tokens are shown as the model wrote them.
    this.aligner = body.tools ? null : new Aligner();
    this.stream = new AnswerStream(ENDPOINT, body, () => onChange(this));
  }

  /** Send the request and read its answer; never throws. */
  async run() {
    this.figures = new Figures(performance.now());
    try {
      for await (const chunks of this.stream.chunks()) {
        this.state = "running";
        const now = performance.now();
        for (const chunk of chunks) this.#take(chunk, now);
        this.onChange(this);
      }
      this.state = "done";
    } catch (error) {
      this.state = this.stream.isStopped ? "stopped" : "failed";
      if (this.state === "failed") this.error = error.message;
    }
    if (this.aligner) this.fresh.push(...this.aligner.end());
    this.onChange(this);
  }

  /** Give up: the server ends the request within a step. */
  stop() {
    this.stream.stop();
  }

  /** Whether it is being read, and would continue after the loss of its connection. */
  get isResumable() {
    return this.state === "running" && this.stream.path !== null && this.stream.lostAt === null;
  }

  /** What the page has not shown yet. */
  take() {
    const taken = this.fresh;
    this.fresh = [];
    return taken;
  }

  #take(chunk, now) {
    const choice = chunk.choices[0];
    const speculative = chunk.metrics?.speculative_decoding;
    let content = "";
    if (choice) {
      content = choice.delta.content ?? "";
      this.text += content;
      this.reasoning += choice.delta.reasoning_content ?? "";
      for (const part of choice.delta.tool_calls ?? []) this.#call(part);
      this.finish = choice.finish_reason ?? this.finish;
    }
    const steps = speculative?.trace ?? [];
    for (const step of steps) this.figures.step(step, now);
    this.steps.push(...steps);
    this.#show(content, steps);
    if (!this.traced && chunk.usage) this.figures.total(chunk.usage.completion_tokens, now);
    if (chunk.usage && speculative && "num_spec_steps" in speculative) this.figures.finish(speculative, chunk.usage);
  }

  #show(content, steps) {
    if (!this.traced) {
      if (content) this.fresh.push([null, content]);
      return;
    }
    const tokens = steps.flatMap(tokensOf);
    const found = this.aligner ? this.aligner.push(content, tokens) : tokens.map((token) => [token, token.text]);
    this.fresh.push(...found);
  }

  #call(part) {
    const call = (this.calls[part.index] ??= { name: "", arguments: "" });
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}
