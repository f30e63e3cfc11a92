// The cost meter: operations and money, today and this month, by cause.

import { ask } from "./api.js";
import { byId, el, keyed, set, setText, show } from "./dom.js";
import { clock, count, counted, duration, money, utc } from "./format.js";
import { poll } from "./polling.js";
import { chosen, now, offers } from "./state.js";
import { makeFact, updateFact } from "./summary.js";

const EVERY_S = 30;

const refresh = poll(
  () => {
    const pair = chosen();
    return pair && offers("cost") ? ask("/api/cost", { pair: pair.id }) : null;
  },
  draw,
  (why) => draw({ why }),
  () => EVERY_S,
);

/** Ask anew: another pair. */
export const forgetCost = () => refresh();

function draw(cost) {
  setText(byId("cost-asof"), cost.as_of ? `as of ${clock(cost.as_of)}` : "");
  set(byId("cost-asof"), { title: cost.as_of ? utc(cost.as_of) : null });
  keyed(byId("cost-facts"), cost.today ? facts(cost) : [], ({ name }) => name, makeFact, updateFact);
  show(byId("cost-why"), cost.why);
  setText(byId("cost-why"), cost.why ?? "");
  const causes = byCause(cost);
  show(byId("causes-frame"), causes.length);
  keyed(byId("causes"), causes, ({ cause }) => cause, makeCause, (row, { today, month }) => {
    const texts = [
      count(today?.operations ?? 0),
      money(today ? today.money : 0, cost.currency),
      count(month?.operations ?? 0),
      money(month ? month.money : 0, cost.currency),
    ];
    texts.forEach((text, index) => setText(row.cells[index], text));
  });
}

function facts({ currency, today, month, outage, idle_per_day: idle }) {
  const fact = (name, part, more = "") => ({
    name,
    value: money(part.money, currency),
    note: counted(part.operations, "operation") + more,
  });
  const list = [fact("Today", today), fact("This month", month ?? today)];
  if (outage) list.push(fact("This outage", outage, `, ${duration(now() - outage.since)}`));
  if (idle) list.push(fact("Idle, a day", idle));
  return list;
}

function byCause({ today, month }) {
  const causes = new Map();
  for (const [name, part] of [["month", month], ["today", today]]) {
    for (const one of part?.by_cause ?? []) causes.set(one.cause, { ...causes.get(one.cause), cause: one.cause, [name]: one });
  }
  return [...causes.values()];
}

function makeCause({ cause }) {
  const cells = [0, 1, 2, 3].map(() => el("td", { class: "n" }));
  return { node: el("tr", {}, el("th", { scope: "row", text: cause }), ...cells), cells };
}
