// Dead letters: search them, look at one, replay one or many.

import { confirmAction } from "./actions.js";
import { ask } from "./api.js";
import { byId, button, el, keyed, set, setText, show } from "./dom.js";
import { clock, count, counted, setWhen, size, utc } from "./format.js";
import { chosen, mayAct } from "./state.js";
import { makeFact, updateFact } from "./summary.js";

const SHOWN_MAX = 100;

let letters = [];
let picked = new Set();
let asked = 0;
let peeked = null;

const keyOf = (letter) => `${letter.queue} ${letter.sequence}`;

/** Prepare the search, the selection and the dialog. */
export function prepareLetters() {
  byId("letters-form").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  byId("letters-all").addEventListener("change", ({ target }) => {
    picked = new Set(target.checked ? letters.slice(0, SHOWN_MAX).map(keyOf) : []);
    draw();
  });
  byId("letters-replay").addEventListener("click", () => {
    replay(letters.filter((letter) => picked.has(keyOf(letter))));
  });
  byId("peek-close").addEventListener("click", () => byId("peek").close());
  byId("peek-replay").addEventListener("click", () => {
    byId("peek").close();
    replay([peeked]);
  });
}

const replay = (some) => confirmAction("replay", chosen(), { letters: some });

/** Forget what was found: another pair. */
export function forgetLetters() {
  letters = [];
  picked = new Set();
  asked += 1;
  say("");
  draw();
}

/** The number of dead letters changed: show them, or that there are none. */
export function countLetters(total) {
  if (total) search();
  else {
    forgetLetters();
    say("There are no dead letters.");
  }
}

/** Ask the server with what the form has. */
export async function search() {
  const pair = chosen();
  if (!pair) return;
  asked += 1;
  const mine = asked;
  say("Searching…");
  try {
    const found = await ask("/api/dead-letters", {
      pair: pair.id,
      ...Object.fromEntries(new FormData(byId("letters-form"))),
    });
    if (mine === asked) take(found);
  } catch (error) {
    if (mine === asked) say(`The dead letters are not known: ${error.message}`);
  }
}

function take(found) {
  letters = found.letters;
  const there = new Set(letters.map(keyOf));
  picked = new Set([...picked].filter((key) => there.has(key)));
  setText(byId("letters-asof"), found.as_of ? `as of ${clock(found.as_of)}` : "");
  set(byId("letters-asof"), { title: found.as_of ? utc(found.as_of) : null });
  const more = found.truncated ? "; there are more, narrow the search" : "";
  if (found.why) say(`The dead letters are not known: ${found.why}`);
  else say(letters.length ? `${counted(letters.length, "dead letter")} found${more}.` : "No dead letter matches.");
  draw();
}

const say = (text) => setText(byId("letters-say"), text);

/** Draw what was found. */
export function draw() {
  const acts = mayAct(chosen());
  show(byId("letters-frame"), letters.length);
  keyed(byId("letters"), letters.slice(0, SHOWN_MAX), keyOf, makeLetter, (row, letter) => {
    row.letter = letter;
    row.check.checked = picked.has(keyOf(letter));
    setText(row.reason, letter.reason || "no reason");
    set(row.reason, { title: letter.description || null });
    setText(row.preview, [letter.description, letter.preview].filter(Boolean).join(" · "));
    setText(row.entity, letter.entity || "–");
    setText(row.id, letter.id || "–");
    setWhen(row.at, letter.enqueued_at);
    setText(row.size, size(letter.size));
    setText(row.queue, `${letter.queue.split("/").at(-1)} #${letter.sequence}`);
    set(row.queue, { title: letter.queue });
  });
  const more = letters.length - SHOWN_MAX;
  show(byId("letters-more"), more > 0);
  setText(byId("letters-more"), `and ${count(more)} more`);
  const shown = letters.slice(0, SHOWN_MAX);
  byId("letters-all").checked = shown.length > 0 && shown.every((letter) => picked.has(keyOf(letter)));
  show(byId("letters-replay"), acts && picked.size);
  setText(byId("letters-replay"), `Replay ${counted(picked.size, "dead letter")}…`);
}

function makeLetter(letter) {
  const row = { letter, at: el("time") };
  row.check = el("input", { type: "checkbox", "aria-label": `Select ${letter.id || letter.sequence}` });
  row.check.addEventListener("change", () => {
    if (row.check.checked) picked.add(keyOf(row.letter));
    else picked.delete(keyOf(row.letter));
    draw();
  });
  for (const name of ["reason", "preview", "id"]) row[name] = el("span", { class: `letter-${name}` });
  for (const name of ["entity", "queue"]) row[name] = el("td");
  row.size = el("td", { class: "n" });
  const name = letter.id || `number ${letter.sequence}`;
  row.node = el(
    "tr",
    {},
    el("td", { class: "operator" }, row.check),
    el("td", {}, row.reason, row.preview),
    row.entity,
    el("td", {}, row.id),
    el("td", {}, row.at),
    row.size,
    row.queue,
    el("td", { class: "operator" }, button("Show", () => peek(row.letter), { "aria-label": `Show ${name}` })),
  );
  return row;
}

async function peek(letter) {
  const pair = chosen();
  try {
    const whole = await ask("/api/dead-letters/one", { pair: pair.id, queue: letter.queue, sequence: letter.sequence });
    peeked = letter;
    const facts = [
      { name: "Message id", value: letter.id || "–" },
      { name: "Entity", value: letter.entity || "–" },
      { name: "Reason", value: letter.reason || "–" },
      { name: "Description", value: letter.description || "–" },
      { name: "Enqueued", at: letter.enqueued_at },
      { name: "Size", value: size(letter.size) },
      ...Object.entries(whole.properties ?? {}).map(([name, value]) => ({ name: `property ${name}`, value: text(value) })),
    ];
    keyed(byId("peek-facts"), facts, ({ name }) => name, makeFact, updateFact);
    setText(byId("peek-body"), whole.body_text ?? `base64: ${whole.body_base64 ?? ""}`);
    show(byId("peek-replay"), mayAct(pair));
    byId("peek").showModal();
  } catch (error) {
    say(`The message is not known: ${error.message}`);
  }
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
