// The proof: the verdict of the last conservation report, and a button that makes it anew.

import { confirmAction } from "./actions.js";
import { ask } from "./api.js";
import { byId, button, keyed, set, setText } from "./dom.js";
import { clock, utc } from "./format.js";
import { poll } from "./polling.js";
import { chosen, mayAct, offers } from "./state.js";
import { makeLine } from "./summary.js";

const VERDICTS = {
  "nothing lost": { level: "healthy", text: "✓ Nothing lost" },
  lost: { level: "unprotected", text: "✗ Messages were lost" },
  unknown: { level: "attention", text: "? Not everything can be known" },
  none: { level: "none", text: "No proof was made yet" },
};
const EVERY_S = 5;

let making = false;

/** Ask now: a proof was asked for. */
export const refreshProof = poll(
  () => (offers("proof") ? ask("/api/proof") : null),
  draw,
  (why) => draw({ verdict: "none", text: why, unknown: [] }),
  () => EVERY_S,
);

function draw(proof) {
  making = proof.making ?? false;
  const verdict = VERDICTS[proof.verdict] ?? VERDICTS.unknown;
  set(byId("proof-verdict"), { "data-level": verdict.level });
  setText(byId("proof-verdict"), verdict.text);
  setText(byId("proof-text"), proof.text ?? "");
  setText(byId("proof-asof"), making ? "being made now…" : proof.made_at ? `made ${clock(proof.made_at)}` : "");
  set(byId("proof-asof"), { title: proof.made_at ? utc(proof.made_at) : null });
  keyed(byId("proof-unknown"), [...new Set(proof.unknown ?? [])], (text) => text, makeLine, () => {});
  keyed(
    byId("proof-actions"),
    mayAct() && offers("prove") ? ["Make it anew…"] : [],
    (label) => label,
    (label) => ({ node: button(label, () => confirmAction("prove", chosen())) }),
    ({ node }) => set(node, { disabled: making }),
  );
}
