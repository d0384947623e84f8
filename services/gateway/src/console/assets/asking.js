// Asking whoever holds a lock or permits of a semaphore to release it, and what holders were asked.

import { auth } from "/console/auth.js";
import { call } from "/console/api.js";
import { ask } from "/console/dialog.js";
import { el } from "/console/dom.js";
import { duration, pathText, plural } from "/console/format.js";

const TIMES_MS = [10_000, 30_000, 60_000, 300_000, 600_000];
/// Where it is asked for, and what the question says of those who hold it.
const KINDS = {
  lock: {
    address: "lock-sets",
    text: "Its holders are told who asks and why. They keep it as long as they need it.",
    force: "Force it open when the time is over, at once if none is named",
  },
  semaphore: {
    address: "semaphores",
    text: "Whoever holds permits of it is told who asks and why. They keep them as long as they need them.",
    force: "End all holds when the time is over, at once if none is named",
  },
};

/// Who asked, why, and when the hold ends if it does.
export const askedText = (request) =>
  request
    ? [
        `Asked for by ${request.by || "somebody"}`,
        request.reason && `: ${request.reason}`,
        request.force && request.remaining_ms !== null && `; ends in ${duration(request.remaining_ms)}`,
      ]
        .filter(Boolean)
        .join("")
    : "";

/// Asks the owners of a thing, a key of `KINDS`, by a question to the user first. `done` is called once they are asked.
export function askForRelease(kind, { namespace, path, done }) {
  const { address, text, force: forceLabel } = KINDS[kind];
  const reason = el("input", { type: "text", id: "ask-reason", autocomplete: "off", maxlength: "256" });
  const within = el(
    "select",
    { id: "ask-within" },
    el("option", { value: "", text: "no time is named" }),
    TIMES_MS.map((ms) => el("option", { value: String(ms), text: duration(ms) })),
  );
  const force = auth.may("locks:force") && el("input", { type: "checkbox", id: "ask-force" });
  const field = (id, label, input) => el("div", { class: "field" }, el("label", { for: id, text: label }), input);
  ask({
    title: `Ask for “${pathText(path)}”?`,
    text,
    confirm: "Ask",
    id: "ask",
    fields: [
      field("ask-reason", "Why", reason),
      field("ask-within", "Time", within),
      force && el("div", { class: "checks" }, el("label", {}, force, forceLabel)),
    ],
    act: async () => {
      const { asked, truncated } = await call("POST", ["namespaces", namespace, address, "ask-release"], {
        body: {
          path,
          reason: reason.value,
          ...(within.value && { within_ms: Number(within.value) }),
          force: Boolean(force && force.checked),
        },
      });
      done();
      if (asked === 0) return `Nobody holds “${pathText(path)}”.`;
      return `${plural(asked, "holder")}${truncated ? ", and maybe more," : ""} of “${pathText(path)}” asked.`;
    },
  });
}
