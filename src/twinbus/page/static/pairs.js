// The list of pairs, and the hosts that other pages show.

import { byId, button, el, keyed, set, setText, show } from "./dom.js";
import { clock, count, counted, utc } from "./format.js";
import { byUrgency, chosen, view } from "./state.js";

const SHOWN_MAX = 100;
const FILTER_FROM = 9;

/** Prepare the list; `pick(id)` is called with the pair that the viewer chooses. */
export function preparePairs(pick, redraw) {
  pickPair = pick;
  byId("pairs-text").addEventListener("input", redraw);
}

let pickPair = () => {};

/** Draw the list. One pair and no peers need none. */
export function drawPairs() {
  const all = byUrgency();
  show(byId("pairs"), all.length > 1 || view.peers.length > 0);
  show(byId("pairs-filter"), all.length >= FILTER_FROM);
  const pairs = all.filter(({ kind }) => kind === "pair").length;
  const syphons = all.length - pairs;
  const title = [pairs && counted(pairs, "pair"), syphons && counted(syphons, "syphon")].filter(Boolean).join(", ");
  setText(byId("pairs-title"), title || "Pairs");
  const found = all.filter(matches(byId("pairs-text").value));
  keyed(byId("pairs-list"), found.slice(0, SHOWN_MAX), (pair) => pair.id, makeEntry, updateEntry);
  const more = found.length - SHOWN_MAX;
  show(byId("pairs-more"), more > 0 || found.length === 0);
  setText(byId("pairs-more"), more > 0 ? `and ${count(more)} more` : "No pair matches.");
  drawPeers();
}

function matches(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (pair) => {
    const where = `${pair.name} ${pair.host} ${pair.program} ${pair.word}`.toLowerCase();
    return words.every((word) => where.includes(word));
  };
}

function makeEntry(pair) {
  const name = el("span", { class: "entry-name" });
  const state = el("span", { class: "entry-state" });
  const home = el("span", { class: "entry-home muted" });
  const press = button(undefined, () => pickPair(pair.id), { class: "entry" });
  press.append(el("span", { class: "dot", "aria-hidden": "true" }), name, state, home);
  return { node: el("li", {}, press), press, name, state, home };
}

function updateEntry(row, pair) {
  set(row.press, { "data-level": pair.level, "aria-current": pair.id === chosen()?.id ? "true" : null });
  setText(row.name, pair.name);
  setText(row.state, pair.word);
  setText(row.home, `${pair.program} ${pair.pid}${pair.host ? ` on ${pair.host}` : ""}`);
}

function drawPeers() {
  show(byId("peers"), view.peers.length > 0);
  keyed(
    byId("peers-list"),
    view.peers,
    (peer) => peer.url,
    (peer) => {
      const state = el("span", { class: "muted" });
      return { node: el("li", { class: "peer" }, el("span", { text: peer.url }), state), state };
    },
    (row, peer) => {
      const reachable = peer.state === "ok";
      set(row.node, { "data-level": reachable && !peer.why ? "healthy" : "attention", title: peer.since ? utc(peer.since) : null });
      const since = peer.since ? ` since ${clock(peer.since)}` : "";
      const why = peer.why ? `: ${peer.why}` : "";
      setText(row.state, `${reachable ? "reachable" : `unreachable${since}`}${why}`);
    },
  );
}
