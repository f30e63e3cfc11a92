// Events: who did what, newest first, with a filter.

import { ask } from "./api.js";
import { byId, el, keyed, set, setText, show } from "./dom.js";
import { count, setWhen } from "./format.js";
import { chosen, view } from "./state.js";

const KEPT_MAX = 1_000;
const SHOWN_MAX = 100;

let events = [];
let taken = 0;
let redraw = () => {};

/** Prepare the filter. */
export function prepareEvents(changed) {
  redraw = changed;
  for (const id of ["events-pair", "events-trouble", "events-text"]) byId(id).addEventListener("input", changed);
}

/** Ask for the latest events: at first, and after a reconnect. */
export async function loadEvents() {
  try {
    const { events: earlier } = await ask("/api/events", { limit: 200 });
    events = [];
    for (const event of earlier.sort((a, b) => a.t - b.t)) takeEvent(event);
    redraw();
  } catch (error) {
    show(byId("events-say"), true);
    setText(byId("events-say"), `Earlier events are not known: ${error.message}`);
  }
}

/** Take one event, the newest so far. */
export function takeEvent(event) {
  taken += 1;
  event.key = taken;
  events.unshift(event);
  if (events.length > KEPT_MAX) events.length = KEPT_MAX;
}

/** Draw those that match. */
export function drawEvents() {
  const found = events.filter(filter());
  keyed(byId("events"), found.slice(0, SHOWN_MAX), (event) => event.key, makeEvent, () => {});
  const more = found.length - SHOWN_MAX;
  setText(byId("events-count"), more > 0 ? `newest ${SHOWN_MAX} of ${count(found.length)}` : "");
  show(byId("events-say"), !found.length);
  setText(byId("events-say"), events.length ? "No event matches." : "Nothing has happened yet.");
}

function filter() {
  const words = byId("events-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const pair = byId("events-pair").checked ? chosen() : null;
  const trouble = byId("events-trouble").checked;
  return (event) => {
    if (trouble && event.level === "info") return false;
    if (pair && event.pair !== pair.id && event.pair !== pair.name) return false;
    if (!words.length) return true;
    const where = `${event.text} ${event.path ?? ""} ${event.kind} ${event.pair ?? ""} ${event.host ?? ""} ${event.who ?? ""}`;
    return words.every((word) => where.toLowerCase().includes(word));
  };
}

const SIGNS = { info: "", warning: "!", error: "✗" };

function makeEvent(event) {
  const time = el("time");
  setWhen(time, event.t);
  const pair = view.pairs.get(event.pair)?.name ?? event.pair ?? "";
  const who = event.who && !event.text.includes(event.who) ? `by ${event.who}` : "";
  const node = el(
    "li",
    {},
    time,
    el("span", { class: "event-level", text: SIGNS[event.level] ?? "", title: event.level }),
    el("span", { class: "event-text" }, event.text, who ? el("span", { class: "muted", text: ` ${who}` }) : null),
    el("span", { class: "muted event-pair", text: pair }),
  );
  set(node, { "data-event": event.level });
  return { node };
}
