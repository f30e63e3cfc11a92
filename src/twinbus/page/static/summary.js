// The chosen pair: who it is, whether its sends are safe, and what needs attention.

import { byId, el, keyed, set, setText } from "./dom.js";
import { count, rate, setWhen } from "./format.js";
import { now } from "./state.js";

const BUCKET_S = 10; // The server counts the sends of a pair in such steps.

/** Draw the card of the pair. */
export function drawSummary(pair) {
  setText(byId("pair-name"), pair.name);
  set(byId("pair-chip"), { "data-level": pair.level });
  setText(byId("pair-chip"), pair.word);
  const readOnly = pair.read_only ? " · read-only: a pair of another host" : "";
  setText(byId("pair-home"), `${pair.program} · pid ${pair.pid}${pair.host ? ` on ${pair.host}` : ""}${readOnly}`);
  setText(byId("pair-route"), pair.primary ? `${pair.primary} → ${pair.secondary}` : "");
  const running = pair.state === "running";
  set(byId("pair-safety"), { "data-level": running && pair.safe ? "healthy" : "attention" });
  setText(byId("pair-safety"), (running ? pair.safety : pair.why || pair.safety) || "");
  keyed(byId("pair-attention"), unique(pair.attention), (text) => text, makeLine, () => {});
  keyed(byId("pair-facts"), facts(pair), ({ name }) => name, makeFact, updateFact);
}

const unique = (texts) => [...new Set(texts)];

/** One line of a list of texts. */
export const makeLine = (text) => ({ node: el("li", { text }) });

function facts(pair) {
  const total = (field) => pair.entities.reduce((sum, entity) => sum + (entity[field] ?? 0), 0);
  const rotation = pair.queues.filter((queue) => queue.state === "in rotation" && !queue.reason).length;
  const list = [{ name: pair.state === "running" ? "Running since" : "Started", at: pair.started_at }];
  if (pair.kind === "syphon") list.push(...syphonFacts(pair.syphon));
  else list.push(
    { name: "Queues in rotation", value: `${count(rotation)} of ${count(pair.queues.length)}` },
    { name: "Protection verified", ...(pair.verified_at ? { at: pair.verified_at } : { value: "not yet" }) },
    { name: "Sent to the primary", value: count(total("sent")) },
    { name: "Diverted", value: count(total("diverted")) },
    { name: "Errors raised to callers", value: count(total("raised")) },
    { name: "Sends now", value: rate(recent(pair)) },
  );
  if (pair.fleet) list.push({ name: "Other processes", value: pair.fleet });
  if (pair.state !== "running") list.push({ name: "Last heard", at: pair.state_since });
  return list;
}

/** What a syphon program does: it sends nothing of its own, and has no rotation. */
const syphonFacts = (syphon) => [
  { name: "Moved", value: count(syphon?.completed) },
  { name: "In flight", value: count(syphon?.in_flight) },
  { name: "Dead-lettered", value: count(syphon?.dead_lettered) },
  { name: "Rate home", value: rate(syphon?.rate) },
];

/** Sends a second in the last whole bucket; null: not known. */
function recent(pair) {
  if (pair.state !== "running") return pair.state === "gone" ? 0 : null;
  const begins = (Math.floor(now() / BUCKET_S) - 1) * BUCKET_S;
  const isSeen = !pair.unseen.some(([, to]) => to > begins);
  const bucket = pair.sends.find(([t]) => t === begins);
  if (isSeen && bucket) return (bucket[1] + bucket[2]) / BUCKET_S;
  return isSeen && !pair.read_only ? 0 : null; // Another host's clock may be behind.
}

/** A term and its value, for a <dl>. */
export function makeFact({ name }) {
  const value = el("dd");
  return { node: el("div", {}, el("dt", { text: name }), value), value, time: null };
}

/** Change the value of a term: `at` is a time, `value` a text, `note` a second line. */
export function updateFact(row, { at, value, note, level }) {
  if (at !== undefined) {
    if (!row.time) row.value.replaceChildren((row.time = el("time")));
    setWhen(row.time, at);
    return;
  }
  if (!row.text) row.value.replaceChildren((row.text = el("span")), (row.note = el("small")));
  set(row.value, { "data-level": level });
  setText(row.text, value);
  setText(row.note, note ?? "");
}
