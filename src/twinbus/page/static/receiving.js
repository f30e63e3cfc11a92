// Receiving: who reads each queue and subscription, what handlers do, and what twins hold.

import { byId, el, keyed, set, setText, show } from "./dom.js";
import { clock, count } from "./format.js";

const ROWS_MAX = 50;

/** Draw the card; a pair without such receivers, processors and twins has none. */
export function drawReceiving(pair) {
  const rows = pair.receiving ?? [];
  show(byId("receiving"), rows.length);
  keyed(byId("receiving-rows"), rows.slice(0, ROWS_MAX), ({ path }) => path, makeRow, updateRow);
  show(byId("receiving-more"), rows.length > ROWS_MAX);
  setText(byId("receiving-more"), `and ${count(rows.length - ROWS_MAX)} more`);
}

function makeRow({ path }) {
  const dot = el("span", { class: "dot", role: "img" });
  const name = el("th", { scope: "row" }, dot, " ", path);
  const cells = COLUMNS.map(([label, kind]) => el("td", { class: kind || null, "data-label": label }));
  const parts = cells.map((cell) => {
    const [text, note] = [el("span"), el("small")];
    cell.append(text, note);
    return { cell, text, note };
  });
  return { node: el("tr", {}, name, ...cells), dot, parts };
}

// The names of the columns stand beside the values where a row becomes a block.
const COLUMNS = [["Receivers"], ["Handed out", "n"], ["Handlers"], ["Twin"], ["In the twin", "n"]];
const WORDS = { healthy: "verified", attention: "needs attention", none: "not verified" };

function updateRow(row, one) {
  set(row.node, { "data-level": one.level });
  set(row.dot, { "aria-label": WORDS[one.level] ?? one.level, title: WORDS[one.level] ?? one.level });
  const texts = [
    [links(one), [one.since ? `no link since ${clock(one.since)}` : "", one.reason].filter(Boolean).join(": ")],
    [one.receivers || one.handed_out ? count(one.handed_out) : "", handed(one)],
    [one.processor, ""],
    [one.twin, [one.twin_reason, one.emptied_by && one.waiting ? `emptied by ${one.emptied_by}` : ""].filter(Boolean).join("; ")],
    [one.twin ? count(one.waiting) : "", one.waiting ? one.contents : ""],
  ];
  texts.forEach(([text, note], index) => {
    set(row.parts[index].cell, { "data-empty": !text && !note });
    setText(row.parts[index].text, text);
    setText(row.parts[index].note, note);
  });
}

/** What the receivers do at each side that they read. */
function links(one) {
  const sides = [["primary", one.primary], ["twin", one.secondary]].filter(([, text]) => text);
  return sides.map(([name, text]) => `${name}: ${text}`).join("; ");
}

function handed(one) {
  const parts = [
    one.second_copies && `${count(one.second_copies)} second copies not handed out`,
    one.reopened && `${count(one.reopened)} links reopened, ${count(one.silent)} of them silent`,
  ];
  return parts.filter(Boolean).join("; ");
}
