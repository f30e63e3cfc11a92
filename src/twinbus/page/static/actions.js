// What an operator can do. Each action is confirmed in a dialog that says what will happen.

import { act } from "./api.js";
import { byId, el, keyed, set, setText, show } from "./dom.js";
import { count, counted } from "./format.js";

const quoted = (path) => `“${path}”`;

/** Title, what will happen, the word on the button and the same as a command; by action. */
const ACTIONS = {
  "force-failover": ({ entity, pair }) => ({
    title: `Force failover of ${quoted(entity.path)}`,
    lines: [
      `Sends to ${quoted(entity.path)} go to the backlog queues in ${pair.secondary} at once, even while the primary works.`,
      "It stays so until someone marks the entity healthy; answered pings do not end it.",
      "Nothing is lost: the syphon moves the messages to the primary.",
    ],
    yes: "Force failover",
    body: { path: entity.path },
    command: `force-failover ${entity.path} --pair ${pair.name}`,
  }),
  "mark-healthy": ({ entity, pair }) => ({
    title: `Mark ${quoted(entity.path)} healthy`,
    lines: [
      `Sends to ${quoted(entity.path)} go to the primary ${pair.primary} at once.`,
      "If the primary still fails, callers wait or see errors until the failover interval has passed again.",
    ],
    yes: "Mark healthy",
    body: { path: entity.path },
    command: `mark-healthy ${entity.path} --pair ${pair.name}`,
  }),
  freeze: ({ entity, pair }) => ({
    title: `Freeze ${quoted(entity.path)}`,
    lines: [
      `Sends to ${quoted(entity.path)} keep going ${entity.state === "failed over" ? "to the backlog" : "to the primary"}, whatever happens.`,
      "No failover timer and no ping runs until someone unfreezes the entity.",
    ],
    yes: "Freeze",
    body: { path: entity.path },
    command: `freeze ${entity.path} --pair ${pair.name}`,
  }),
  unfreeze: ({ entity, pair }) => ({
    title: `Unfreeze ${quoted(entity.path)}`,
    lines: ["Failover timer and pings run again: the entity may fail over, or return to the primary."],
    yes: "Unfreeze",
    body: { path: entity.path },
    command: `unfreeze ${entity.path} --pair ${pair.name}`,
  }),
  pause: ({ pair }) => ({
    title: "Pause the syphon",
    lines: [
      "The syphon takes no more messages from the backlog queues.",
      `${counted(pair.syphon?.in_flight ?? 0, "message")} in flight will be finished.`,
      "The backlog stays where it is, and grows while entities are failed over.",
    ],
    yes: "Pause",
    command: `syphon pause --pair ${pair.name}`,
  }),
  resume: ({ pair }) => ({
    title: "Resume the syphon",
    lines: ["The syphon moves the backlog to the primary again, gently at first."],
    yes: "Resume",
    command: `syphon resume --pair ${pair.name}`,
  }),
  "only-entity": ({ pair }) => ({
    title: "Drain one entity",
    lines: [
      "A drain starts on the machine of this page. It moves the messages of this entity to the primary, and stops.",
      "Messages of other entities stay in the backlog. The event list says when it has ended.",
    ],
    yes: "Start",
    input: select("Entity", pair.entities.map((one) => one.path)),
    field: "path",
    command: "syphon drain --only ENTITY",
  }),
  "drain-once": ({ pair }) => ({
    title: "Drain the backlog once",
    lines: [
      `A drain starts on the machine of this page. It moves the backlog of ${pair.name} to the primary, and stops.`,
      "Each moved message is billed as a receive, a send and a settlement. The event list says when it has ended.",
    ],
    yes: "Start",
    command: "syphon drain",
  }),
  rate: () => ({
    title: "Set the rate of the syphon",
    lines: [
      "The syphon moves at most so many messages a second to the primary, from now on until it ends.",
      "“adaptive”: as many as the primary takes.",
    ],
    yes: "Set the rate",
    input: textInput("Messages a second", "adaptive", { maxlength: 20 }),
    field: "value",
  }),
  prune: ({ pair, queues, text }) => ({
    title: `Delete ${counted(queues.length, "empty backlog queue")} of ${pair.name}`,
    lines: [
      ...queues,
      `Only these are deleted, and none that holds a message or a dead letter: ${text}, as the pairs of this host use them.`,
    ],
    yes: "Delete",
    body: { queues },
    command: `backlog prune --queues ${pair.queues.length}`,
  }),
  note: () => ({
    title: "Add a note",
    lines: ["The note is shown among the events, and kept in the ledger if this page has one."],
    yes: "Add",
    input: textInput("Note", "", { maxlength: 300 }),
    field: "text",
  }),
  replay: ({ letters }) => ({
    title: `Replay ${counted(letters.length, "dead letter")}`,
    lines: [
      `${letters.length === 1 ? "The message goes" : "The messages go"} back into the backlog queue; the syphon tries to deliver ${letters.length === 1 ? "it" : "them"} again.`,
      "A message whose destination still refuses it becomes a dead letter again.",
      ...reasons(letters),
    ],
    yes: "Replay",
    bodies: byQueue(letters),
  }),
  prove: () => ({
    title: "Make the proof again",
    lines: ["The conservation report is computed from the whole ledger. That takes about a minute and a Java runtime."],
    yes: "Make it",
    command: "report conservation",
  }),
};

/** The actions that make sense for an entity as it is. */
export function entityActions(entity) {
  const failed = entity.state !== "healthy" || entity.forced;
  return [
    !entity.forced && { action: "force-failover", label: "Force failover…" },
    failed && { action: "mark-healthy", label: "Mark healthy…" },
    entity.frozen ? { action: "unfreeze", label: "Unfreeze…" } : { action: "freeze", label: "Freeze…" },
  ].filter(Boolean);
}

function reasons(letters) {
  const totals = new Map();
  for (const { reason } of letters) totals.set(reason, (totals.get(reason) ?? 0) + 1);
  return [...totals].slice(0, 5).map(([reason, total]) => `${count(total)}: ${reason || "no reason"}`);
}

function byQueue(letters) {
  const queues = new Map();
  for (const { queue, sequence } of letters) queues.set(queue, [...(queues.get(queue) ?? []), sequence]);
  return [...queues].map(([queue, sequences]) => ({ queue, sequences }));
}

function select(label, values) {
  const options = values.map((value) => el("option", { value, text: value }));
  const input = el("select", {}, ...options);
  return { node: el("label", {}, `${label} `, input), read: () => input.value };
}

function textInput(label, value, attributes) {
  const input = el("input", { value, autocomplete: "off", required: true, ...attributes });
  return { node: el("label", {}, `${label} `, input), read: () => input.value };
}

let pending = null;
let afterAction = () => {};

/** Prepare the dialog; `done()` is called after each action that succeeded. */
export function prepareActions(done) {
  afterAction = done;
  byId("confirm-no").addEventListener("click", () => byId("confirm").close());
  byId("confirm").addEventListener("close", () => (pending = null));
  byId("confirm").querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    run(pending);
  });
}

/** Ask the operator, then do it. `what` has the entity or the letters that the action is about. */
export function confirmAction(action, pair, what = {}) {
  const question = ACTIONS[action]({ pair, ...what });
  pending = { action, pair: pair?.id ?? null, question };
  setText(byId("confirm-title"), question.title);
  keyed(byId("confirm-text"), question.lines, (line) => line, (text) => ({ node: el("li", { text }) }), () => {});
  byId("confirm-input").replaceChildren(...(question.input ? [question.input.node] : []));
  show(byId("confirm-command"), question.command);
  setText(byId("confirm-command"), question.command ? `The same as: twinbus ${question.command}` : "");
  setText(byId("confirm-error"), "");
  setText(byId("confirm-yes"), question.yes);
  set(byId("confirm-yes"), { disabled: false });
  byId("confirm").showModal();
}

/** Ask what prune would delete, then confirm that; says so if it is nothing. */
export async function confirmPrune(pair) {
  try {
    const { queues, text } = await act({ action: "prune", pair: pair.id, dry_run: true });
    if (queues.length) confirmAction("prune", pair, { queues, text });
    else toast(`Nothing to prune: ${text}, and there is no other empty one.`);
  } catch (error) {
    toast(error.message);
  }
}

async function run(asked) {
  if (!asked) return;
  const { action, pair, question } = asked;
  const given = question.input ? { [question.field]: question.input.read() } : {};
  set(byId("confirm-yes"), { disabled: true });
  setText(byId("confirm-error"), "");
  try {
    const texts = [];
    for (const body of question.bodies ?? [question.body ?? {}]) {
      texts.push((await act({ action, pair, ...body, ...given })).text);
    }
    byId("confirm").close();
    toast(texts.join(" "));
    afterAction(action);
  } catch (error) {
    setText(byId("confirm-error"), error.message);
  } finally {
    set(byId("confirm-yes"), { disabled: false });
  }
}

const TOAST_MS = 8_000;
let toastTimer = 0;

/** Say what an action did, for a while. */
function toast(text) {
  const node = byId("toast");
  setText(node, text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => setText(node, ""), TOAST_MS);
}
