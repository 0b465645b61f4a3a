// The page for operators: charts of a second each, news, streams, and buttons that kill processes.

import { getJson, getText, post, servedModel, useKey } from "../data/api.js";
import { Chart } from "../views/chart.js";
import { colourOf } from "../views/colours.js";
import { byId, fixed, html } from "../views/dom.js";
import { Scrape } from "../data/exposition.js";
import { busy, cache, perForward, requests, sourceNamed, speed } from "../data/rates.js";
import { Repeated } from "./repeated.js";
import { Watch } from "../data/watch.js";

const PERIOD_MS = 1000;
const MOST_NEWS = 60;
const percent = (value) => `${fixed(100 * value, 0)} %`;
const box = byId("charts");
const charts = {
  perForward: new Chart(box, {
    title: "Tokens per forward, by source",
    show: (value) => fixed(value, 2),
    stacked: true,
    colour: (name) => colourOf(sourceNamed(name)),
  }),
  speed: new Chart(box, { title: "Tokens per second" }),
  busy: new Chart(box, { title: "Stages busy", show: percent, most: 1 }),
  requests: new Chart(box, { title: "Requests" }),
  cache: new Chart(box, { title: "KV cache", show: percent, most: 1 }),
};
const watch = new Watch();
let before = null; // the last scrape
let settings = { victims: [], token: null, keeps_answers: false };
let streams = [];

function tell(text, kind = "") {
  const time = new Date().toLocaleTimeString("en-GB");
  const list = byId("news");
  list.append(html("li", { class: kind }, html("time", { class: "quiet" }, time), ` ${text}`));
  while (list.children.length > MOST_NEWS) list.firstElementChild.remove();
  list.scrollTop = list.scrollHeight;
}

function complain(text) {
  byId("alert").textContent = text;
  byId("alert").hidden = !text;
}

async function lookAtHealth() {
  const health = await getJson("/health").catch((error) => ({ status: "unavailable", reason: error.message }));
  for (const text of watch.news(health, performance.now())) tell(text);
  const isOk = health.status === "ok";
  const said = isOk ? "ready" : "not ready";
  if (byId("state").textContent !== said) byId("state").textContent = said;
  byId("state").className = isOk ? "state ok" : "state out";
}

async function lookAtMetrics() {
  let text;
  try {
    text = await getText("/metrics");
  } catch ({ status, message }) {
    const refused = status === 401 || status === 403;
    if (refused) byId("key-field").hidden = false;
    complain(refused ? message : "");
    before = null;
    for (const chart of Object.values(charts)) chart.push(new Map());
    return;
  }
  complain("");
  show(new Scrape(text, performance.now()));
}

function show(scrape) {
  charts.requests.push(requests(scrape));
  charts.cache.push(cache(scrape));
  charts.busy.push(before ? busy(before, scrape) : new Map());
  charts.speed.push(before ? speed(before, scrape) : new Map());
  charts.perForward.push(before ? perForward(before, scrape) : new Map());
  before = scrape;
}

/** Look once a second; an answer may take longer, as that of a router that is being replaced. */
async function poll(look) {
  for (;;) {
    const began = performance.now();
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, Math.max(0, began + PERIOD_MS - performance.now())));
  }
}

async function toggleStreams() {
  const button = byId("streams-button");
  if (streams.length) {
    for (const stream of streams) stream.stop();
    streams = [];
    button.textContent = "Start streams";
    return;
  }
  let model;
  button.disabled = true; // a second click would start streams that no button stops
  try {
    model = await servedModel();
  } catch (error) {
    tell(`streams were not started: ${error.message}`, "bad");
    return;
  } finally {
    button.disabled = false;
  }
  const failure = (message) => tell(`a stream failed: ${message}`, "bad");
  streams = Array.from({ length: Number(byId("streams-count").value) }, (_, i) => new Repeated(i, failure));
  byId("streams").replaceChildren(...streams.map((stream) => stream.element));
  button.textContent = "Stop streams";
  for (const stream of streams) stream.run(model, settings.keeps_answers);
}

async function kill(name) {
  const send = () => post(`/playground/kill/${name}`, {}, { more: { "X-Playground-Token": settings.token } });
  try {
    const answer = await send().catch(async (error) => {
      if (error.status !== 403) throw error;
      settings = await getJson("/playground/settings"); // another HTTP process has another token
      return send();
    });
    tell(`SIGKILL to ${name.replace("-", " ")}, process ${(await answer.json()).pid}`, "bad");
  } catch (error) {
    const isGone = name === "ingress" && (error.status === 0 || error.status >= 500); // it has killed itself
    if (isGone) tell("SIGKILL to ingress", "bad");
    else tell(`${name} was not killed: ${error.message}`);
  }
}

async function offerVictims() {
  settings = await getJson("/playground/settings");
  byId("killing").hidden = !settings.victims.length;
  byId("victims").replaceChildren(
    ...settings.victims.map((name) => {
      const button = html("button", { type: "button", class: "danger", "data-victim": name }, `Kill ${name.replace("-", " ")}`);
      button.addEventListener("click", () => kill(name));
      return button;
    }),
  );
}

byId("streams-button").addEventListener("click", toggleStreams);
byId("key").addEventListener("change", (event) => useKey(event.target.value));
offerVictims();
poll(lookAtHealth);
poll(lookAtMetrics);
