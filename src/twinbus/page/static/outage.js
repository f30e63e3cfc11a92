// The chart of an outage in a report: sends, the backlog's depth and its age over one time axis.
// A report has this file, what it imports and its data in itself, and loads nothing.

import { byId, el, svg } from "./dom.js";
import { clock, count, duration, tick } from "./format.js";
import { drawSends } from "./sends.js";

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200];
const DAY_S = 86_400;
const TICKS_MAX = 8;
const MARGIN = 4; // Percent: the label of a tick stays inside.
const NARROWEST_BAND = 0.3; // Percent.

const outage = JSON.parse(byId("outage-data").textContent);
const length_s = outage.to - outage.from;
const share = (t) => (100 * Math.min(Math.max(t - outage.from, 0), length_s)) / length_s;
const percent = (t) => `${share(t).toFixed(2)}%`;

byId("outage").append(
  el("div", { class: "legend", "aria-hidden": "true" }, ...keys()),
  moments(),
  heading("Sends", { id: "sends-rate" }, { id: "sends-top" }),
  picture({ id: "sends" }, svg("g", { id: "sends-unseen" }), svg("g", { id: "sends-bars" })),
  ...levels("Messages in the backlog", outage.depth, count),
  ...(outage.ages.length ? levels("Age of the oldest message in the backlog", outage.ages, duration) : []),
  axis(),
  el("p", { class: "muted", text: `${clock(outage.from)} to ${clock(outage.to)} UTC` }),
  el("ol", {}, ...outage.markers.map(([t, label]) => el("li", { text: `${label}, ${clock(t)}` }))),
);
drawSends(outage.sends, outage.bucket_s, [], { from: outage.from, to: outage.to, place: share }, outage.diverted);

function keys() {
  const named = { "send-0": "to the primary", "send-1": outage.diverted, ...(outage.band && { band: outage.band }) };
  return Object.entries(named).map(([kind, text]) =>
    el("span", {}, svg("svg", { width: 11, height: 11 }, svg("rect", { class: kind, width: 11, height: 11 })), el("span", { text })),
  );
}

function heading(title, note, peak) {
  const notes = [el("span", { class: "muted", ...note }), el("span", { class: "spring" }), el("span", { class: "muted", ...peak })];
  return el("div", { class: "title" }, el("h3", { text: title }), ...notes);
}

/** A picture with the bands behind its shapes, and the moments before them. */
function picture(attributes, ...shapes) {
  const bands = outage.bands.map(([a, b, text]) => {
    const width = Math.max(NARROWEST_BAND, share(b) - share(a));
    return svg("rect", { x: percent(a), width: `${width.toFixed(2)}%`, height: "100%" }, svg("title", { text }));
  });
  const lines = outage.markers.map(([t]) => svg("line", { x1: percent(t), x2: percent(t), y2: "100%" }));
  return svg(
    "svg",
    { class: "plot", role: "img", ...attributes },
    svg("g", { class: "bands" }, ...bands),
    ...shapes,
    svg("g", { class: "moments" }, ...lines),
  );
}

/** An area over time; it is flat up to the bucket in which it changed. */
function levels(title, points, say) {
  const highest = Math.max(0, ...points.map(([, value]) => value));
  let line = "M0 100";
  let height = 100;
  for (const [t, value] of points) {
    line += `L${share(t - outage.bucket_s).toFixed(2)} ${height}`;
    height = Number((100 - (100 * value) / (highest || 1)).toFixed(2));
    line += `L${share(t).toFixed(2)} ${height}`;
  }
  line += `L100 ${height}`;
  const peak = `at most ${say(highest)}`;
  const attributes = { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-label": `${title}: ${peak}` };
  const shapes = [svg("path", { class: "area", d: `${line}V100H0Z` }), svg("path", { class: "line", d: line })];
  return [heading(title, {}, { text: peak }), picture(attributes, ...shapes)];
}

/** The numbers of the moments above their lines, in two rows: neighbours do not cover each other. */
function moments() {
  const numbers = outage.markers.map(([t], index) =>
    svg("text", { x: percent(t), y: 11 + 12 * (index % 2), "text-anchor": "middle", text: `${index + 1}` }),
  );
  return svg("svg", { class: "plot numbers", "aria-hidden": "true" }, ...numbers);
}

function axis() {
  const days_s = DAY_S * Math.ceil(length_s / TICKS_MAX / DAY_S);
  const step_s = STEPS_S.find((step) => length_s / step <= TICKS_MAX) ?? days_s;
  const ticks = [];
  for (let t = Math.ceil(outage.from / step_s) * step_s; t <= outage.to; t += step_s) {
    if (share(t) > MARGIN && share(t) < 100 - MARGIN) ticks.push(t);
  }
  const labels = ticks.map((t) => svg("text", { x: percent(t), y: 12, "text-anchor": "middle", text: tick(t, length_s) }));
  return el("div", { class: "axis", "aria-hidden": "true" }, svg("svg", { class: "plot" }, ...labels));
}
