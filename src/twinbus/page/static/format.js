// Numbers, durations and times as people read them. Null is "not known" and is written as a dash.

import { set, setText } from "./dom.js";

// A report names its zone, that of its tables; the page has the viewer's zone and language.
const ZONE = document.documentElement.dataset.zone;
const LANGUAGE = ZONE && "en-GB";
const WHOLE = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const TENTH = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(LANGUAGE, {
  timeZone: ZONE,
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const MINUTE = new Intl.DateTimeFormat(LANGUAGE, {
  timeZone: ZONE,
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(LANGUAGE, { timeZone: ZONE, day: "numeric", month: "short" });
const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined;

/** A count with thousands separators. */
export const count = (value) => (known(value) ? WHOLE.format(value) : UNKNOWN);

/** A count and its noun: "1 message", "1,204 messages". */
export const counted = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** A rate per second. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return `${(value < 100 ? TENTH : WHOLE).format(value)}/s`;
}

const LEAST_MONEY = 0.0001;

/** An amount of money; small amounts keep two digits that say something. */
export function money(value, currency) {
  if (!known(value)) return "not priced";
  if (value > 0 && value < LEAST_MONEY) return `below ${money(LEAST_MONEY, currency)}`;
  const small = value > 0 && value < 0.1 ? { maximumSignificantDigits: 2 } : {};
  return new Intl.NumberFormat(undefined, { style: "currency", currency, ...small }).format(value);
}

/** A size with its unit; 1 KB is 1,024 bytes, as Service Bus counts. */
export function size(bytes) {
  if (!known(bytes)) return UNKNOWN;
  if (bytes < 1024) return `${WHOLE.format(bytes)} B`;
  const kilobytes = bytes / 1024;
  return kilobytes < 1024 ? `${TENTH.format(kilobytes)} KB` : `${TENTH.format(kilobytes / 1024)} MB`;
}

/** A duration in its two largest units. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  const units = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = units.findIndex(([length]) => whole >= length);
  if (first < 0) return "0 s";
  const [length, name] = units[first];
  const rest = units[first + 1];
  const more = rest ? Math.floor((whole % length) / rest[0]) : 0;
  return `${WHOLE.format(Math.floor(whole / length))} ${name}${more ? ` ${more} ${rest[1]}` : ""}`;
}

const TIME_MAX_S = 8.64e12; // A Date holds no more, and throws: the page of another host may lie.
const isTime = (epoch) => known(epoch) && Math.abs(epoch) <= TIME_MAX_S;
const date = (epoch) => new Date(epoch * 1000);

/** The time of day in the viewer's zone, with the day if it is another one. */
export function clock(epoch) {
  if (!isTime(epoch)) return UNKNOWN;
  const at = date(epoch);
  const today = at.toDateString() === new Date().toDateString();
  return today ? CLOCK.format(at) : `${DAY.format(at)} ${CLOCK.format(at)}`;
}

/** The label of a tick on an axis that is `span_s` long. */
export function tick(epoch, span_s) {
  return (span_s > 200_000 ? DAY : span_s < 300 ? CLOCK : MINUTE).format(date(epoch));
}

/** The time in UTC, for `title`. */
export function utc(epoch) {
  return isTime(epoch) ? `${date(epoch).toISOString().slice(0, 19).replace("T", " ")} UTC` : "not known";
}

/** Make a <time> show the viewer's zone, and UTC on hover. */
export function setWhen(node, epoch) {
  setText(node, clock(epoch));
  set(node, { title: utc(epoch), datetime: isTime(epoch) ? date(epoch).toISOString() : null });
}
