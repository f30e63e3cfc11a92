// The page: follows the server's stream and draws what changed, at most four times a second.

import { confirmAction, prepareActions } from "./actions.js";
import { follow } from "./api.js";
import { drawBacklog, forgetBacklog, prepareBacklog, refreshBacklog } from "./backlog.js";
import { byId, set, show } from "./dom.js";
import { drawEvents, loadEvents, prepareEvents, takeEvent } from "./events.js";
import { drawHeadline } from "./headline.js";
import { countLetters, draw as drawLetters, forgetLetters, prepareLetters, search } from "./letters.js";
import { drawPairs, preparePairs } from "./pairs.js";
import { refreshCost, refreshProof } from "./ledger.js";
import { drawReceiving } from "./receiving.js";
import { choose, chosen, loseContact, mayAct, offers, takeHead, takePair, takeView, view } from "./state.js";
import { drawSummary } from "./summary.js";
import { drawTimeline, forget as forgetTimeline, prepareTimeline } from "./timeline.js";

const DRAW_MS = 250;
const TICK_MS = 1_000;

const parts = {
  headline: drawHeadline,
  pairs: drawPairs,
  chosen: drawChosen,
  events: drawEvents,
};
const stale = new Set();
let drawTimer = 0;
let shownId = null;

/** Draw a part soon; changes that come close together are drawn once. */
function changed(...names) {
  for (const name of names) stale.add(name);
  if (!drawTimer && !document.hidden) drawTimer = setTimeout(draw, DRAW_MS);
}

function draw() {
  drawTimer = 0;
  const names = [...stale];
  stale.clear();
  for (const name of names) parts[name]();
}

function drawChosen() {
  const pair = chosen();
  show(byId("nobody"), !pair);
  show(byId("pair"), pair);
  show(byId("proof"), offers("proof"));
  show(byId("cost"), offers("cost") && !pair?.read_only);
  show(byId("events-note"), mayAct());
  set(document.body, { "data-acts": mayAct(pair) });
  if (!pair) return;
  if (pair.id !== shownId) turnTo(pair);
  drawSummary(pair);
  show(byId("timeline"), pair.kind !== "syphon");
  drawTimeline(pair);
  drawBacklog(pair);
  drawReceiving(pair);
}

/** Another pair is shown: what was asked for the former one no longer counts. */
function turnTo(pair) {
  shownId = pair.id;
  choose(pair.id);
  forgetLetters();
  forgetTimeline();
  forgetBacklog();
  refreshCost();
}

function pick(id) {
  choose(id);
  changed("pairs", "chosen", "events");
  byId("chosen").focus({ preventScroll: true });
}

const chosenChanged = () => changed("chosen");
preparePairs(pick, () => changed("pairs"));
prepareTimeline(chosenChanged);
prepareBacklog(chosenChanged, countLetters);
prepareLetters();
prepareEvents(() => changed("events"));
byId("events-note").addEventListener("click", () => confirmAction("note", chosen()));
prepareActions((action) => {
  refreshBacklog();
  if (action === "replay") search();
  if (action === "prove") refreshProof();
});

follow({
  view: (whole) => {
    takeView(whole);
    drawLetters();
    loadEvents();
    refreshProof();
    changed(...Object.keys(parts));
  },
  pair: (pair) => {
    takePair(pair);
    changed("pairs", ...(pair.id === shownId ? ["chosen"] : []));
  },
  head: (head) => {
    takeHead(head);
    changed("headline", ...(head.peers?.length ? ["pairs"] : []));
  },
  event: (event) => {
    takeEvent(event);
    changed("events");
  },
}, () => {
  loseContact();
  changed("headline");
});

// Time passes without a change: axis, countdowns and ages move, and silence is noticed.
setInterval(() => changed("headline", ...(view.pairs.size ? ["chosen"] : [])), TICK_MS);
document.addEventListener("visibilitychange", () => changed(...Object.keys(parts)));
