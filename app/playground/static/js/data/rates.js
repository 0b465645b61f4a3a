// What two looks at the metrics say of the time between them. Knows no page.

const FORWARDS = "vllm:inter_token_latency_seconds_count"; // steps of sequences after their first token
const FIRST_TOKENS = "vllm:time_to_first_token_seconds_count";
const TOKENS = "vllm:generation_tokens_total";
const SOURCES = "spectra:spec_decode_source_tokens_total";
const OWN = "the target itself"; // of what draws tokens without a draft

/** The growth of a counter; null where it began anew, as with another router. */
function growth(before, now) {
  return now >= before ? now - before : null;
}

/** What grew, by key. */
function growths(before, now) {
  return new Map([...now].map(([key, value]) => [key, growth(before.get(key) ?? 0, value)]));
}

/** Shares of time, 0 to 1, that stages spent on steps. */
export function busy(before, now) {
  const name = "spectra:stage_busy_seconds_total";
  const key = (labels) => (labels.lane === "Target" ? `stage ${labels.stage}` : `${labels.lane} ${labels.stage}`);
  const seconds = (now.at - before.at) / 1000;
  const grown = growths(before.by(name, key), now.by(name, key));
  return new Map([...grown].map(([place, value]) => [place, value === null ? null : Math.min(1, value / seconds)]));
}

/** Requests that run and wait. */
export function requests(now) {
  return new Map([
    ["running", now.sum("vllm:num_requests_running")],
    ["waiting", now.sum("vllm:num_requests_waiting")],
  ]);
}

/** The share of KV blocks in use, 0 to 1, of the fullest pipeline. */
export function cache(now) {
  const shares = now.all("vllm:kv_cache_usage_perc").map((sample) => sample.value);
  return new Map([["in use", shares.length ? Math.max(...shares) : null]]);
}

/** Tokens per second. */
export function speed(before, now) {
  const grown = growth(before.sum(TOKENS), now.sum(TOKENS));
  return new Map([["generated", grown === null ? null : (1000 * grown) / (now.at - before.at)]]);
}

/** Tokens that a forward of a sequence brings, by who drafted them; nothing while there is no forward. */
export function perForward(before, now) {
  const forwards = growth(before.sum(FORWARDS), now.sum(FORWARDS));
  const key = (labels) => labels.source;
  const accepted = growths(before.by(SOURCES, key, { kind: "accepted" }), now.by(SOURCES, key, { kind: "accepted" }));
  const share = (value) => (forwards && value ? value / forwards : null);
  const tokens = growth(before.sum(TOKENS), now.sum(TOKENS));
  const firsts = growth(before.sum(FIRST_TOKENS), now.sum(FIRST_TOKENS));
  const drafted = [...accepted.values()].reduce((sum, value) => sum + (value ?? 0), 0);
  const own = tokens === null || firsts === null ? null : Math.max(0, tokens - firsts - drafted);
  return new Map([[OWN, share(own)], ...[...accepted].map(([source, value]) => [source, share(value)])]);
}

/** The class of a source's colour needs its name; the target's own tokens have none. */
export function sourceNamed(name) {
  return name === OWN ? null : name;
}
