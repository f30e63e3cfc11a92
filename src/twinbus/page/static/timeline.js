// The timeline: a row for each entity, its states as spans, failovers and pings as marks.
// Height and hatching tell the states apart for those who do not see the colours.

import { ask, poll } from "./api.js";
import { byId, byPlace, el, keyed, set, setText, show, svg } from "./dom.js";
import { clock, count, counted, duration, tick } from "./format.js";
import { makeEntity, updateEntity } from "./entity.js";
import { drawSends } from "./sends.js";
import { chosen, now } from "./state.js";

const ZOOMS = [
  { name: "2 min", span_s: 120, tick_s: 30, every_s: 5 },
  { name: "10 min", span_s: 600, tick_s: 120, every_s: 10 },
  { name: "1 h", span_s: 3_600, tick_s: 600, every_s: 20 },
  { name: "1 day", span_s: 86_400, tick_s: 14_400, every_s: 60 },
  { name: "1 week", span_s: 604_800, tick_s: 86_400, every_s: 300 },
];
const ROWS_MAX = 50;
const FILTER_FROM = 9;
const PIECES_MAX = 400;
const NARROWEST = 0.25; // Percent: a short outage on a long axis stays visible.
const MARK_PATHS = {
  ping: "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
  "ping-failed": "M-3-3 3 3M-3 3 3-3",
  failover: "M-4-5h8L0 3z",
  restore: "M-4 4h8L0-4z",
};
const MARK_WORDS = {
  ping: "ping answered",
  "ping-failed": "ping failed",
  failover: "failed over",
  restore: "returned to the primary",
};
const TROUBLE = ["unusable", "raising", "failed over", "suspect", "healthy"];

let zoom = ZOOMS[1];
let past = null;
let seen = "";
let redraw = () => {};

const refresh = poll(
  () => {
    const pair = chosen();
    if (!pair) return null;
    return ask("/api/timeline", { pair: pair.id, from: now() - zoom.span_s, to: now() });
  },
  (answer) => {
    past = { ...answer, rows: new Map(answer.entities.map((one) => [one.path, one])) };
    show(byId("timeline-why"), false);
    redraw();
  },
  (why) => {
    show(byId("timeline-why"), true);
    setText(byId("timeline-why"), `The timeline before this page was opened is not known: ${why}`);
  },
  () => zoom.every_s,
);

/** Prepare the zoom, the filter and the legend. */
export function prepareTimeline(changed) {
  redraw = changed;
  byId("entity-text").addEventListener("input", changed);
  for (const one of ZOOMS) {
    const input = el("input", { type: "radio", name: "zoom", checked: one === zoom });
    input.addEventListener("change", () => {
      zoom = one;
      forget();
    });
    byId("zoom").append(el("label", {}, input, el("span", { text: one.name })));
  }
  const states = ["healthy", "raising", "suspect", "failed over", "unusable", "forced", "frozen", "unknown"];
  const sends = ["to the primary", "to the backlog", "errors raised"];
  byId("legend").append(
    ...states.map((state) => legend(state, stateRect(state, { x: 0, width: 18 }))),
    ...Object.keys(MARK_PATHS).map((kind) => legend(MARK_WORDS[kind], markShape(kind, 9))),
    ...sends.map((what, index) => legend(what, svg("rect", { class: `send-${index}`, width: 10, height: 16, x: 4 }))),
  );
}

const legend = (text, shape) =>
  el("span", {}, svg("svg", { width: 18, height: 16, class: "key" }, shape), el("span", { text }));

/** Drop what is known of the past and ask for it: another pair, or another zoom. */
export function forget() {
  past = null;
  redraw();
  refresh();
}

/** Draw the rows, the axis and the sends of a pair. */
export function drawTimeline(pair) {
  const to = now();
  const frame = { from: to - zoom.span_s, to, place: (t) => (100 * (t - to + zoom.span_s)) / zoom.span_s };
  const states = pair.entities.map((one) => one.path + one.states).join();
  if (states !== seen && past) refresh(); // The marks of a change are in the ledger.
  seen = states;
  drawAxis(frame);
  const found = chosenEntities(pair);
  const rows = found.slice(0, ROWS_MAX);
  keyed(
    byId("entities"),
    rows,
    (entity) => `${pair.id} ${entity.path}`,
    makeEntity,
    (row, entity) => {
      updateEntity(row, entity, pair);
      drawTrack(row, entity, pair, frame);
    },
  );
  const more = found.length - rows.length;
  show(byId("entities-more"), more > 0 || !found.length);
  const none = pair.entities.length ? "No entity matches." : "This pair has not sent anything yet.";
  setText(byId("entities-more"), more > 0 ? `and ${count(more)} more: filter by name to see them` : none);
  setText(byId("timeline-count"), counted(pair.entities.length, "entity", "entities"));
  show(byId("entity-filter"), pair.entities.length >= FILTER_FROM);
  if (past?.recorded) drawSends(past.sends, past.bucket_s, past.unseen, frame);
  else drawSends(pair.sends, 10, pair.unseen, frame);
}

function chosenEntities(pair) {
  const words = byId("entity-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = (entity) => Math.min(...entity.states.map((state) => TROUBLE.indexOf(state)).filter((at) => at >= 0));
  return pair.entities
    .filter((one) => words.every((word) => `${one.path} ${one.states}`.toLowerCase().includes(word)))
    .sort((a, b) => rank(a) - rank(b) || a.path.localeCompare(b.path));
}

function drawAxis({ from, to, place }) {
  const zone_s = new Date(to * 1000).getTimezoneOffset() * 60;
  const margin = zoom.span_s < 300 ? 8 : 3; // Labels with seconds are wider.
  const ticks = [];
  for (let t = Math.ceil((from - zone_s) / zoom.tick_s) * zoom.tick_s + zone_s; t < to; t += zoom.tick_s) {
    if (place(t) > margin && place(t) < 100 - margin) ticks.push(t);
  }
  keyed(
    byId("axis"),
    ticks,
    byPlace,
    () => ({ node: svg("text", { y: 12, "text-anchor": "middle" }) }),
    ({ node }, t) => {
      set(node, { x: `${place(t).toFixed(2)}%` });
      setText(node, tick(t, zoom.span_s));
    },
  );
}

function drawTrack(row, entity, pair, frame) {
  const spans = spansOf(entity, pair, frame);
  const marks = marksOf(entity.path, frame);
  keyed(row.spans, spans, byPlace, makeSpan, (piece, [from, to, state]) => {
    const x = Math.max(0, frame.place(from));
    const width = Math.max(NARROWEST, frame.place(to) - x);
    stateRect(state, { x: `${x.toFixed(2)}%`, width: `${width.toFixed(2)}%` }, piece.node);
    setText(piece.title, `${state}: ${clock(from)} to ${clock(to)} (${duration(to - from)})`);
  });
  keyed(row.marks, marks, (mark, index) => `${mark[1]} ${index}`, makeMark, (piece, [t, kind]) => {
    set(piece.node, { x: `${frame.place(t).toFixed(2)}%` });
    setText(piece.title, `${MARK_WORDS[kind]}: ${clock(t)}`);
  });
  set(row.track, { "aria-label": spoken(entity.path, spans) });
}

/** The spans in view: as the server merged ledger and memory, then what was seen since it did. */
function spansOf(entity, pair, { from, to }) {
  const end = pair.state === "running" ? to : (pair.state_since ?? to);
  const before = past?.rows.get(entity.path)?.spans ?? [];
  const merged = before.length ? Math.min(past.to, to) : -Infinity;
  const live = entity.spans
    .map(([a, b, state]) => [Math.max(a, merged), b ?? end, state])
    .filter(([a, b]) => a < b);
  const all = [...before, ...live].filter(([a, b]) => b > from && a < to);
  if (pair.state === "silent") all.push([Math.max(end, from), to, "unknown"]);
  return all.slice(-PIECES_MAX);
}

/** The marks in view; of those that would cover each other only the first is kept. */
function marksOf(path, { from, to, place }) {
  const last = {};
  return (past?.rows.get(path)?.marks ?? [])
    .filter(([t, kind]) => {
      if (t < from || t > to || !(kind in MARK_PATHS)) return false;
      if (place(t) - (last[kind] ?? -1) < 0.8) return false;
      last[kind] = place(t);
      return true;
    })
    .slice(-PIECES_MAX);
}

function makeSpan() {
  const title = svg("title");
  return { node: svg("rect", {}, title), title };
}

/** Give a rectangle the look of a state: trouble is taller than health. */
function stateRect(state, place, node = svg("rect")) {
  const height = { healthy: 4, suspect: 10, raising: 10 }[state] ?? 16;
  set(node, { class: `span-${state.replace(" ", "-")}`, height, y: (16 - height) / 2, ...place });
  return node;
}

function makeMark([, kind]) {
  const title = svg("title");
  return { node: svg("svg", { y: 8, overflow: "visible" }, markShape(kind, 0, 0, title)), title };
}

const markShape = (kind, x = 0, y = x ? 8 : 0, title = null) =>
  svg("path", { d: MARK_PATHS[kind], class: `mark-${kind}`, transform: x ? `translate(${x} ${y})` : null }, title);

/** What a screen reader says of a row: the troubles in view, at most the last three. */
function spoken(path, spans) {
  const troubles = spans.filter(([, , state]) => state !== "healthy"); // What is unknown too.
  const said = troubles.slice(-3).map(([a, b, state]) => `${state} for ${duration(b - a)} from ${clock(a)}`);
  const head = `${path}, last ${zoom.name}: `;
  if (!spans.length) return `${head}nothing recorded`;
  if (!said.length) return `${head}healthy`;
  const earlier = troubles.length - said.length;
  return head + (earlier ? `${counted(earlier, "earlier trouble")}, ` : "") + said.join(", ");
}
