// The sends below the timeline: to the primary, to the backlog, and errors raised to callers.

import { byId, byPlace, keyed, set, setText, svg } from "./dom.js";
import { clock, count, rate } from "./format.js";

/** Draw one bar for each bucket, stacked from the bottom: primary, backlog, raised. */
export function drawSends(sends, bucket_s, unseen, { from, to, place }, diverted = "to the backlog") {
  const shown = sends.filter(([t]) => t + bucket_s > from && t < to);
  const height_of = ([, ...counts]) => counts.reduce((sum, value) => sum + value, 0);
  const top = Math.max(1, ...shown.map(height_of));
  // A bucket that was watched in part, or is not over, has no rate.
  const whole = shown.filter(([t]) => t + bucket_s <= to && !unseen.some(([a, b]) => b > t && a < t + bucket_s));
  const width = Math.max(0.15, place(from + bucket_s) * 0.86);
  keyed(byId("sends-bars"), shown, byPlace, makeBar, (bar, [t, ...counts]) => {
    let height = 0;
    for (const [index, value] of counts.entries()) {
      const share = (100 * value) / top;
      height += share;
      set(bar.parts[index], {
        x: `${Math.max(0, place(t)).toFixed(2)}%`,
        y: `${(100 - height).toFixed(2)}%`,
        width: `${width.toFixed(2)}%`,
        height: `${share.toFixed(2)}%`,
      });
    }
    setText(bar.title, `${clock(t)}: ${worded(counts, diverted)}`);
  });
  const gaps = unseen.filter(([a, b]) => b > from && a < to);
  keyed(byId("sends-unseen"), gaps, byPlace, makeGap, (gap, [a, b]) => {
    const x = Math.max(0, place(a));
    set(gap.node, { x: `${x.toFixed(2)}%`, width: `${(Math.min(100, place(b)) - x).toFixed(2)}%` });
    setText(gap.title, `not watched: ${clock(a)} to ${clock(b)}`);
  });
  const totals = [0, 1, 2].map((index) => shown.reduce((sum, [, ...counts]) => sum + counts[index], 0));
  set(byId("sends"), { "aria-label": `Sends in the time shown: ${worded(totals, diverted)}` });
  const raised = Number.isNaN(totals[2]) ? "" : `, ${count(totals[2])} raised`;
  setText(byId("sends-rate"), `${count(totals[0] + totals[1])} stored${raised}`);
  const peak = whole.length ? Math.max(...whole.map(height_of)) / bucket_s : null;
  setText(byId("sends-top"), shown.length ? `peak ${rate(peak)}` : "");
}

/** The counts in words; a report does not know which bucket an error belongs to. */
const worded = (counts, diverted) =>
  ["to the primary", diverted, "errors raised"]
    .map((words, index) => [counts[index], words])
    .filter(([value]) => value >= 0)
    .map(([value, words]) => `${count(value)} ${words}`)
    .join(", ");

function makeGap() {
  const title = svg("title");
  return { node: svg("rect", { class: "span-unknown", y: 0, height: "100%" }, title), title };
}

function makeBar() {
  const title = svg("title");
  const parts = [0, 1, 2].map((index) => svg("rect", { class: `send-${index}` }));
  return { node: svg("g", {}, title, ...parts), title, parts };
}
