// The playground: what belongs to the whole page.

import { getJson, servedModel, useKey } from "../data/api.js";
import { Card } from "../views/card.js";
import { byId } from "../views/dom.js";
import { Form } from "../views/form.js";
import { Race } from "./race.js";
import { Single } from "./single.js";
import { StepsView } from "../views/steps_view.js";

const form = new Form();
const card = new Card(byId("card"));
const steps = new StepsView((step) => (form.mode === "race" ? race : single).mark(step));
const single = new Single(card, steps);
const race = new Race(card, steps);
const modes = document.querySelectorAll("input[name=mode]");
let model = null;
let keepsAnswers = false; // whether the server does
let busy = false;

function alertWith(text) {
  byId("alert").textContent = text;
  byId("alert").hidden = !text;
}

/** Tell those who hear the page; the text is announced when it changes. */
function announce(text) {
  byId("live").textContent = "";
  requestAnimationFrame(() => {
    byId("live").textContent = text;
  });
}

function setBusy(is) {
  busy = is;
  byId("send").disabled = is || model === null;
  byId("stop").disabled = !is;
  for (const choice of modes) choice.disabled = is;
  document.body.classList.toggle("busy", is);
}

function showMode() {
  const isRace = form.mode === "race";
  byId("one").hidden = isRace;
  byId("race").hidden = !isRace;
  byId("method-field").hidden = isRace;
  byId("send").firstChild.textContent = isRace ? "Start " : "Send ";
  steps.clear();
}

async function connect() {
  try {
    model = await servedModel();
  } catch (error) {
    model = null;
    setBusy(busy); // a key may be typed while an answer comes
    if (error.status === 401) {
      byId("options").open = true;
      alertWith(`This server asks for a key, which goes into the options: ${error.message}`);
      byId("key").focus();
    } else {
      alertWith(error.message);
    }
    byId("model").textContent = "";
    return;
  }
  alertWith("");
  byId("model").textContent = model.id;
  byId("untraced").hidden = model.speculative.trace;
  form.fit(model);
  race.fit(model);
  setBusy(busy);
}

async function send() {
  if (busy || model === null) return;
  alertWith("");
  let fields;
  try {
    fields = { ...form.read(), resumable: keepsAnswers };
  } catch (error) {
    alertWith(error.message);
    return;
  }
  setBusy(true);
  const panel = form.mode === "race" ? race : single;
  panel.mark(null);
  const results = document.querySelector(".results");
  if (results.getBoundingClientRect().top > innerHeight / 2) results.scrollIntoView(); // on a phone
  try {
    const said = await (panel === race ? race.run(model, fields) : single.run(model, fields, form.method));
    const asked = panel === race ? race.racers.map((racer) => racer.generation) : [single.generation];
    const failed = asked.find((one) => one?.state === "failed");
    if (failed) alertWith(failed.error);
    else announce(said);
    byId("outcome").textContent = panel === single ? said : "";
  } finally {
    setBusy(false);
  }
}

function stop() {
  single.stop();
  race.stop();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", stop);
byId("key").addEventListener("change", (event) => {
  useKey(event.target.value);
  connect();
});
for (const choice of modes) choice.addEventListener("change", showMode);
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    send();
  } else if (event.key === "Escape") {
    card.hide();
    if (busy) stop();
  }
});

showMode();
getJson("/playground/settings").then(({ about_model, examples, keeps_answers }) => {
  byId("about-model").hidden = !about_model;
  byId("drop").hidden = !keeps_answers;
  keepsAnswers = keeps_answers;
  form.offer(examples);
});
connect();
