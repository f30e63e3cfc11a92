// The headline: one sentence, one colour and one sign; and whether the page is in contact.

import { byId, set, setText } from "./dom.js";
import { clock, duration } from "./format.js";
import { isSilent, now, silence_s, view } from "./state.js";

const SIGNS = {
  healthy: "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20zm-1.4 14.4L6 11.8l1.6-1.6 3 3 5.8-5.9L18 8.9z",
  "failed-over": "M7 4 2 9l5 5v-3.6h9V7.6H7zm10 6v3.6H8v2.8h9V20l5-5z",
  unprotected: "M12 2 4 5v6c0 5 3.4 9.7 8 11 4.6-1.3 8-6 8-11V5zm-1.2 5h2.4v6h-2.4zm0 7.6h2.4V17h-2.4z",
  attention: "M12 2 1 21h22zm-1.2 7h2.4v6h-2.4zm0 7.4h2.4v2.4h-2.4z",
  none: "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20zM7 10.8h10v2.4H7z",
};
const COLOURS = {
  healthy: "#1a7f4b",
  "failed-over": "#c4421a",
  unprotected: "#b3123a",
  attention: "#b07800",
  none: "#6b7684",
};

let spokenLevel = "";

/** Draw the headline; a page without contact says so instead of showing old news as new. */
export function drawHeadline() {
  const silent = isSilent();
  const { level, text } = silent ? lost() : (view.headline ?? { level: "none", text: "Connecting" });
  const known = level in SIGNS ? level : "attention";
  set(byId("headline"), { "data-level": known });
  set(byId("sign"), { d: SIGNS[known] });
  setText(byId("headline-text"), text);
  setText(byId("version"), view.version);
  setText(byId("role"), view.version ? rights() : "");
  const contact = byId("contact");
  set(contact, { "data-state": silent ? "lost" : "live" });
  setText(contact, silent ? "no contact" : "live");
  speak(silent ? "lost" : known, text);
}

function lost() {
  if (!view.version) return { level: "none", text: "No contact with the server of this page yet" };
  const since = clock(now() - silence_s());
  return {
    level: "attention",
    text: `No contact with the server of this page for ${duration(silence_s())}: what is shown is from ${since}`,
  };
}

function rights() {
  if (view.read_only) return "read-only";
  return view.role === "operator" ? "operator" : "viewer";
}

/** Tell a screen reader, the title and the icon, but only when the level changes. */
function speak(level, text) {
  if (level === spokenLevel) return;
  spokenLevel = level;
  setText(byId("spoken"), text);
  document.title = level === "healthy" ? "Twinbus" : `${level.replace("-", " ")} · Twinbus`;
  const colour = COLOURS[level] ?? COLOURS.attention;
  const path = SIGNS[level] ?? SIGNS.attention;
  const image = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path fill="${colour}" d="${path}"/></svg>`;
  set(byId("icon"), { href: `data:image/svg+xml,${encodeURIComponent(image)}` });
}
