// One row of the timeline: an entity, its state and counts; its details and actions when opened.

import { confirmAction, entityActions } from "./actions.js";
import { button, el, keyed, set, setText, show, svg } from "./dom.js";
import { count, duration } from "./format.js";
import { left, mayAct } from "./state.js";
import { makeFact, updateFact } from "./summary.js";

let rows = 0;

/** Make the row; `updateEntity` fills it. */
export function makeEntity(entity) {
  rows += 1;
  const id = `entity-${rows}`;
  const row = { open: false };
  row.name = button(entity.path, () => {
    row.open = !row.open;
    showDetail(row);
  }, { class: "entity-name", "aria-expanded": "false", "aria-controls": id });
  row.chip = el("span", { class: "chip" });
  row.note = el("span", { class: "muted entity-note" });
  row.spans = svg("g");
  row.marks = svg("g");
  row.track = svg("svg", { class: "track", role: "img" }, row.spans, row.marks);
  row.figures = ["sent", "diverted", "raised"].map((what) => {
    const value = el("b");
    return { what, value, node: el("span", {}, value, el("span", { class: "unit", text: what })) };
  });
  row.facts = el("dl", { class: "facts" });
  row.actions = el("div", { class: "actions" });
  row.detail = el("div", { id, class: "detail", hidden: true }, row.facts, row.actions);
  row.node = el(
    "li",
    { class: "entity" },
    el(
      "div",
      { class: "lane" },
      el("div", { class: "entity-head" }, row.name, row.chip, row.note),
      row.track,
      el("span", { class: "figures" }, ...row.figures.map(({ node }) => node)),
    ),
    row.detail,
  );
  return row;
}

/** Change what differs. */
export function updateEntity(row, entity, pair) {
  row.entity = entity;
  row.pair = pair;
  const shown = entity.states.includes("raising") ? "raising" : entity.state;
  set(row.node, { "data-state": shown });
  set(row.name, { title: entity.path });
  set(row.chip, { "data-state": shown });
  setText(row.chip, entity.states.join(", "));
  setText(row.note, note(entity, pair));
  for (const { what, value, node } of row.figures) {
    setText(value, count(entity[what]));
    set(node, { "data-raised": what === "raised" && entity.raised > 0 });
  }
  if (row.open) showDetail(row);
}

/** What happens next to an entity in trouble. */
function note(entity, pair) {
  if (pair.state !== "running") return "";
  const failover_s = left(pair, entity.fails_over_in_s);
  if (failover_s !== null) return `fails over in ${duration(failover_s)}`;
  const ping_s = left(pair, entity.next_ping_in_s);
  if (ping_s === null) return entity.raising ? `${count(entity.raising)} raised in 1 min` : "";
  const by = entity.pinger ? ` by ${entity.pinger}` : "";
  return ping_s ? `next ping in ${duration(ping_s)}${by}` : "pings now";
}

function showDetail(row) {
  set(row.name, { "aria-expanded": String(row.open) });
  show(row.detail, row.open);
  if (!row.open) return;
  const { entity, pair } = row;
  const facts = [{ name: `${entity.state} since`, at: entity.since }];
  if (entity.raising) {
    facts.push({ name: "Calls raised in the last minute", value: count(entity.raising), note: entity.raising_reason });
  }
  if (entity.reason) facts.push({ name: "Reason", value: entity.reason });
  if (entity.evidence) facts.push({ name: "Also failed over", value: entity.evidence });
  if (entity.last_error) {
    facts.push({ name: "Last error", value: entity.last_error });
    facts.push({ name: "Last error at", at: entity.last_error_at });
  }
  keyed(row.facts, facts, ({ name }) => name, makeFact, updateFact);
  const actions = mayAct(pair) && pair.state === "running" ? entityActions(entity) : [];
  keyed(
    row.actions,
    actions,
    ({ action }) => action,
    ({ action, label }) => ({ node: button(label, () => confirmAction(action, row.pair, { entity: row.entity })) }),
    () => {},
  );
}
