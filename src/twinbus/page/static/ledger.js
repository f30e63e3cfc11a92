// What the ledger shows: the cost by cause, of an outage and of idling; and the proof of the last conservation report.

import { confirmAction } from "./actions.js";
import { ask, poll } from "./api.js";
import { button, byId, el, keyed, set, setText, show } from "./dom.js";
import { clock, count, counted, money, utc } from "./format.js";
import { chosen, mayAct, offers } from "./state.js";
import { makeFact, makeLine, updateFact } from "./summary.js";

const EVERY_S = 5; // For the cost the server reads the ledger every 30 s, in an outage every 10 s.

/** Ask now: another pair is shown. */
export const refreshCost = poll(
  () => {
    const pair = chosen();
    return pair && !pair.read_only && offers("cost") ? ask("/api/cost", { pair: pair.id }) : null;
  },
  drawCost,
  (why) => {
    show(byId("cost-why"), why);
    setText(byId("cost-why"), `The cost is not known: ${why}`);
  },
  () => EVERY_S,
);

function drawCost(cost) {
  show(byId("cost-why"), cost.complete_from);
  setText(byId("cost-why"), cost.complete_from ? `Only operations since ${clock(cost.complete_from)} are counted: the rest of the ledger is in no table yet. “Make it again” under Proof adds it.` : "");
  setText(byId("cost-asof"), `as of ${clock(cost.as_of)}`);
  set(byId("cost-asof"), { title: utc(cost.as_of) });
  keyed(byId("cost-facts"), facts(cost), ({ name }) => name, makeFact, updateFact);
  keyed(byId("cost-causes"), cost.month.by_cause, ({ cause }) => cause, makeCause, ({ cells }, row) => {
    const today = cost.today.by_cause.find(({ cause }) => cause === row.cause);
    const texts = [count(today?.operations ?? 0), count(row.operations), money(row.money, cost.currency)];
    texts.forEach((text, index) => setText(cells[index], text));
  });
  show(byId("cost-frame"), cost.month.by_cause.length);
  setText(byId("cost-note"), `Money by the prices of ${cost.prices}, once the ${count(cost.free)} free operations of a month are used up. Receives of consumers that keep no ledger are not counted.`);
}

function facts(cost) {
  const { month, today, outage, idle_per_day: idle } = cost;
  const least = cost.complete_from ? "at least " : "";
  const list = [
    { name: "This month", value: `${least}${money(month.money, cost.currency)}`, note: `${counted(month.operations, "operation")}; ${money(month.money_with_free, cost.currency)} if the free ones are left` },
    { name: "Today", value: `${least}${money(today.money, cost.currency)}`, note: counted(today.operations, "operation") },
    { name: "Idling, a day", value: money(idle.money, cost.currency), note: idle.queues ? `${counted(idle.operations, "operation")} of the syphons of this pair on ${counted(idle.queues, "queue")}` : "no syphon runs here" },
  ];
  if (outage) {
    list.push({
      name: "This outage so far",
      value: `${outage.is_all ? "" : "at least "}${money(outage.money, cost.currency)}`,
      note: `${counted(outage.operations, "operation")} of this pair since ${clock(outage.since)}`,
    });
  }
  return list;
}

function makeCause({ cause }) {
  const cells = [0, 1, 2].map(() => el("td", { class: "n" }));
  return { node: el("tr", {}, el("th", { scope: "row", text: cause }), ...cells), cells };
}

const VERDICTS = {
  "nothing lost": { level: "healthy", text: "✓ Nothing lost" },
  lost: { level: "unprotected", text: "✗ Messages were lost" },
  unknown: { level: "attention", text: "? Not everything can be known" },
  none: { level: "none", text: "No proof was made yet" },
};

let making = false;

/** Ask now: a proof was asked for. */
export const refreshProof = poll(
  () => (offers("proof") ? ask("/api/proof") : null),
  drawProof,
  (why) => drawProof({ verdict: "none", text: why, unknown: [] }),
  () => EVERY_S,
);

function drawProof(proof) {
  making = proof.making ?? false;
  const verdict = VERDICTS[proof.verdict] ?? VERDICTS.unknown;
  set(byId("proof-verdict"), { "data-level": verdict.level });
  setText(byId("proof-verdict"), verdict.text);
  setText(byId("proof-text"), proof.text ?? "");
  setText(byId("proof-asof"), making ? "being made now…" : proof.made_at ? `made ${clock(proof.made_at)}` : "");
  set(byId("proof-asof"), { title: proof.made_at ? utc(proof.made_at) : null });
  keyed(byId("proof-unknown"), [...new Set(proof.unknown ?? [])], (text) => text, makeLine, () => {});
  keyed(
    byId("proof-actions"),
    mayAct() && offers("prove") ? ["Make it again…"] : [],
    (label) => label,
    (label) => ({ node: button(label, () => confirmAction("prove", chosen())) }),
    ({ node }) => set(node, { disabled: making }),
  );
}
