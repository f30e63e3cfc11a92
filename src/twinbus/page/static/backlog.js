// The backlog: depth and age per queue, the way home, what is held, and the syphon's controls.

import { confirmAction, confirmPrune } from "./actions.js";
import { ask, poll } from "./api.js";
import { byId, button, el, keyed, set, setText, show } from "./dom.js";
import { clock, count, duration, rate, utc } from "./format.js";
import { chosen, left, mayAct, offers, view } from "./state.js";
import { makeFact, updateFact } from "./summary.js";

const QUEUES_MAX = 50;
const EVERY_S = 2; // The server asks a namespace of Azure at most every 30 s, however often it is asked.

let known = null;
let failed = "";
let redraw = () => {};
let lettersChanged = () => {};

const refresh = poll(
  () => {
    const pair = chosen();
    return pair ? ask("/api/backlog", { pair: pair.id }).then((backlog) => ({ backlog, id: pair.id })) : null;
  },
  ({ backlog, id }) => {
    const before = known?.letters;
    known = { ...backlog, id, letters: total(backlog.queues, "dead_letters"), received_at: performance.now() };
    failed = "";
    redraw();
    if (known.letters !== null && known.letters !== before) lettersChanged(known.letters);
  },
  (why) => {
    failed = why;
    redraw();
  },
  () => EVERY_S,
);

/** Prepare the card; `counted(total)` is called when the number of dead letters has changed. */
export function prepareBacklog(changed, counted) {
  redraw = changed;
  lettersChanged = counted;
}

/** Drop what is known and ask: another pair. */
export function forgetBacklog() {
  known = null;
  failed = "";
  refresh();
}

/** Ask now: something was done. */
export const refreshBacklog = () => refresh();

/** Draw the card. */
export function drawBacklog(pair) {
  const backlog = known?.id === pair.id ? known : null;
  setText(byId("backlog-asof"), backlog?.as_of ? `as of ${clock(backlog.as_of)}` : "");
  set(byId("backlog-asof"), { title: backlog?.as_of ? utc(backlog.as_of) : null });
  keyed(byId("backlog-facts"), facts(pair, backlog), ({ name }) => name, makeFact, updateFact);
  const why = failed || backlog?.why || "";
  show(byId("backlog-why"), why);
  setText(byId("backlog-why"), why ? `The depth is not known: ${why}` : "");
  drawHeld(pair, backlog);
  drawQueues(pair, backlog);
  drawControls(pair);
}

/** The sum of what is known; null: nothing is. */
function total(found, field) {
  const values = found.map((one) => one[field]).filter((value) => value !== null && value !== undefined);
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null;
}

function facts(pair, backlog) {
  const queues = backlog?.queues ?? [];
  const waiting = total(queues, "waiting") ?? pair.waiting;
  const oldest = queues.map((queue) => queue.oldest_age_s).filter((age) => age !== null && age !== undefined);
  const home = backlog?.rate ?? total(syphonsOf(pair), "rate");
  const letters = total(queues, "dead_letters");
  return [
    { name: "Waiting", value: count(waiting), note: waiting === 1 ? "message" : "messages" },
    { name: "Oldest", value: oldest.length ? duration(Math.max(...oldest)) : waiting === 0 ? "none" : "–" },
    { name: "Rate home", value: rate(home), note: syphonState(pair) },
    { name: "Empty in", value: forecast(pair, backlog, waiting) },
    { name: "Dead letters", value: count(letters), level: letters ? "attention" : null },
  ];
}

/** The syphons of a pair: its own, and the syphon programs of its label on the same host. */
function syphonsOf(pair) {
  const programs = [...view.pairs.values()].filter(
    (one) => one.kind === "syphon" && one.state === "running" && one.name === pair.name && one.host === pair.host && one.id !== pair.id,
  );
  return [pair, ...programs].map(({ syphon }) => syphon).filter(Boolean);
}

function syphonState(pair) {
  const syphons = syphonsOf(pair);
  if (!syphons.length) return "no syphon runs here";
  if (arePaused(syphons)) return syphons.length > 1 ? "the syphons are paused" : "the syphon is paused";
  const limit = syphons.find((one) => one.limit)?.limit;
  return `${count(total(syphons, "completed"))} moved, ${count(total(syphons, "in_flight"))} in flight${limit ? `; ${limit}` : ""}`;
}

const arePaused = (syphons) => syphons.length > 0 && syphons.every(({ paused }) => paused);

function forecast(pair, backlog, waiting) {
  if (waiting === 0) return "empty now";
  const syphons = syphonsOf(pair);
  if (arePaused(syphons)) return "paused";
  const seconds = syphons.find(({ forecast_s }) => forecast_s !== null)?.forecast_s ?? backlog?.empty_in_s ?? null;
  return seconds === null ? "–" : `about ${duration(left(pair, seconds))}`;
}

function drawHeld(pair, backlog) {
  const held = backlog?.held?.length
    ? backlog.held.map(({ path, why }) => ({ what: path, why }))
    : syphonsOf(pair).flatMap(({ obstacles }) => obstacles);
  const twins = syphonsOf(pair).find((one) => one.twins)?.twins;
  keyed(
    byId("held"),
    twins ? [...held, { what: "Twins", why: twins }] : held,
    ({ what }) => what,
    () => ({ node: el("li") }),
    ({ node }, { what, why }) => setText(node, `${what}: ${why}`),
  );
}

function drawQueues(pair, backlog) {
  const rows = new Map(pair.queues.map((queue) => [queue.queue, { ...queue, path: queue.queue }]));
  for (const queue of backlog?.queues ?? []) rows.set(queue.path, { ...rows.get(queue.path), ...queue });
  const all = [...rows.values()];
  show(byId("queues-frame"), all.length);
  keyed(byId("queues"), all.slice(0, QUEUES_MAX), ({ path }) => path, makeQueue, (row, queue) => {
    const back = left(pair, queue.returns_in_s ?? null);
    const texts = [
      [lost(queue) ? "" : (queue.state ?? "not used by this pair"), queue.reason, back ? `back in ${duration(back)}` : ""].filter(Boolean).join("; "),
      count(queue.waiting),
      duration(queue.oldest_age_s),
      count(queue.in_flight),
      count(queue.dead_letters),
    ];
    texts.forEach((text, index) => setText(row.cells[index], text));
    set(row.cells[4], { "data-level": queue.dead_letters ? "attention" : null });
  });
  show(byId("queues-more"), all.length > QUEUES_MAX);
  setText(byId("queues-more"), `and ${count(all.length - QUEUES_MAX)} more`);
}

/** Whether the secondary cannot be reached: the queue is in the rotation, and cannot be used. */
const lost = (queue) => queue.state === "in rotation" && queue.reason;

function makeQueue({ path }) {
  const cells = ["", "n", "n", "n", "n"].map((name) => el("td", { class: name || null }));
  const cut = path.lastIndexOf("/") + 1;
  const name = el("th", { scope: "row" }, el("span", { class: "prefix", text: path.slice(0, cut) }), path.slice(cut));
  return { node: el("tr", {}, name, ...cells), cells };
}

function drawControls(pair) {
  const allowed = mayAct(pair);
  const syphons = allowed && pair.state === "running" ? syphonsOf(pair) : [];
  const controls = [
    syphons.some(({ paused }) => !paused) && { action: "pause", label: "Pause…" },
    syphons.some(({ paused }) => paused) && { action: "resume", label: "Resume…" },
    allowed && offers("only-entity") && pair.entities.length && { action: "only-entity", label: "Drain one entity…" },
    allowed && offers("drain-once") && { action: "drain-once", label: "Drain once…" },
    syphons.length > 0 && offers("rate") && { action: "rate", label: "Rate…" },
    allowed && pair.state === "running" && offers("prune") && pair.kind === "pair" && { action: "prune", label: "Prune…" },
  ].filter(Boolean);
  keyed(
    byId("backlog-actions"),
    controls,
    ({ action }) => action,
    ({ action, label }) => ({ node: button(label, () => begin(action)) }),
    () => {},
  );
}

const begin = (action) => (action === "prune" ? confirmPrune(chosen()) : confirmAction(action, chosen()));
