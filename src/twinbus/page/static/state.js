// What the server has said, and which pair the viewer has chosen.

/** The latest view. `pairs` is a Map by id. */
export const view = {
  role: "viewer",
  read_only: true,
  version: "",
  offers: [],
  headline: null,
  peers: [],
  pairs: new Map(),
};

const SILENT_AFTER_S = 5; // The server says something every second.

let serverNow = 0;
let heardAt = -Infinity;
let isBroken = false;
let chosenId = new URL(location.href).searchParams.get("pair");

/** Take a whole view: the first one, or the one after a reconnect. */
export function takeView(whole) {
  const { pairs, now, ...rest } = whole;
  Object.assign(view, { offers: [], ...rest });
  view.pairs = new Map();
  for (const pair of pairs) takePair(pair);
  hear(now);
}

/** Take one pair that changed. */
export function takePair(pair) {
  pair.received_at = performance.now();
  view.pairs.set(pair.id, pair);
}

/** Take the headline and the peers of this second. */
export function takeHead({ now, headline, peers }) {
  Object.assign(view, { headline, peers: peers ?? [] });
  hear(now);
}

function hear(now) {
  serverNow = now;
  heardAt = performance.now();
  isBroken = false;
}

/** The connection to the server has ended; the next word of the server begins a new one. */
export function loseContact() {
  isBroken = true;
}

/** Whether the server was not heard for too long, or cannot be. */
export const isSilent = () => isBroken || silence_s() > SILENT_AFTER_S;

/** The server's time now: the viewer's clock may be wrong. */
export const now = () => serverNow + (performance.now() - heardAt) / 1000;

/** Seconds since the server was last heard. */
export const silence_s = () => (performance.now() - heardAt) / 1000;

/** What is left of a duration that the server gave with a pair. */
export function left(pair, seconds) {
  if (seconds === null || seconds === undefined) return null;
  return Math.max(0, seconds - (performance.now() - pair.received_at) / 1000);
}

/** The chosen pair, or the one that most needs to be seen; undefined: there is none. */
export function chosen() {
  return view.pairs.get(chosenId) ?? byUrgency()[0];
}

/** Choose a pair; the address remembers it. */
export function choose(id) {
  chosenId = id;
  const address = new URL(location.href);
  address.searchParams.set("pair", id);
  history.replaceState(null, "", address);
}

/** Whether the viewer may act on a pair; without one: act at all. */
export function mayAct(pair) {
  return view.role === "operator" && !view.read_only && !(pair?.read_only ?? false);
}

/** Whether this server has a document or an action that not every server has. */
export const offers = (name) => view.offers.includes(name);

const URGENCY = ["unprotected", "failed-over", "attention", "healthy", "none"];

/** All pairs, those in trouble first. */
export function byUrgency() {
  const rank = (pair) => URGENCY.indexOf(pair.level);
  return [...view.pairs.values()].sort(
    (a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name) || a.id.localeCompare(b.id),
  );
}
