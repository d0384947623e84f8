// One lock: who holds it, who waits for it, who awaits its conditions, asking for it, and forcing it open.

import { auth } from "/console/auth.js";
import { call } from "/console/api.js";
import { askForRelease, askedText } from "/console/asking.js";
import { ask } from "/console/dialog.js";
import { el, set, setText, sync } from "/console/dom.js";
import { dateTime, number, ownerKey, ownerText, pathKey, pathText, plural, timeOfDay } from "/console/format.js";
import { href } from "/console/route.js";
import { countDown } from "/console/time.js";

/// Shows a lock in `side`, or changes what is shown there of it.
export function detail(side, { live, path, close }) {
  const key = pathKey(path);
  if (side.dataset.path !== key || !side.childElementCount) build(side, { live, path, close });
  side.dataset.path = key;
  const lock = live.locks.get(key) ?? null;
  const waits = live.waits.filter((wait) => wait.resources.some((resource) => pathKey(resource.path) === key));
  const holders = lock?.holders ?? [];
  const [held, heldList, waiting, queue, awaiting, awaitList] = [
    "held",
    "holders",
    "waiting",
    "queue",
    "awaiting",
    "awaits",
  ].map((part) => side.querySelector(`[data-part=${part}]`));
  const unshown = (lock?.holders_total ?? 0) - holders.length;
  setText(
    held,
    holders.length
      ? `Held by ${number(lock.holders_total)}${unshown > 0 ? `, the first ${holders.length} shown` : ""}`
      : "Nobody holds it",
  );
  sync(
    heldList,
    holders,
    (holder) => `${ownerKey(holder)}${holder.fencing_token}`,
    makeHolder,
    (element, holder) => {
      const left = element.querySelector(".left");
      countDown(left, holder.ends, holder.total);
      if (holder.ends === null) setText(left, "as long as its session");
      setText(
        element.querySelector(".phase"),
        holder.phase === "TRANSITION" ? "In transition: its owner has to have stopped." : "",
      );
      setText(element.querySelector(".asked"), askedText(holder.release_requested));
    },
  );
  const total = Math.max(lock?.waiting ?? 0, waits.length);
  setText(
    waiting,
    total
      ? `Queue: ${plural(total, "request")}${total > waits.length ? `, the first ${waits.length} shown` : ""}`
      : "Nobody waits for it",
  );
  sync(
    queue,
    waits,
    (wait) => JSON.stringify([ownerKey(wait), wait.request_id]),
    (wait) => makeWaiter(wait, key),
    (element, wait) => {
      const left = element.querySelector(".left");
      countDown(left, wait.ends, null);
      if (wait.ends === null) setText(left, "no limit");
    },
  );
  const awaits = live.awaits.filter((one) => pathKey(one.path) === key);
  awaiting.hidden = awaits.length === 0;
  setText(awaiting, `Signals: ${plural(awaits.length, "owner")} awaiting`);
  sync(
    awaitList,
    awaits,
    (one) => JSON.stringify([ownerKey(one), one.request_id, one.condition]),
    makeAwait,
    (element, one) => {
      const left = element.querySelector(".left");
      countDown(left, one.ends, null);
      if (one.ends === null) setText(left, "no limit");
    },
  );
  for (const part of ["ask", "force"]) {
    const button = side.querySelector(`[data-part=${part}]`);
    if (button) set(button, "disabled", holders.length === 0);
  }
}

function build(side, { live, path, close }) {
  const { namespace } = live;
  const force =
    auth.may("locks:force") &&
    el(
      "button",
      { type: "button", class: "danger", data: { part: "force" }, on: { click: () => forceOpen(live, path) } },
      "Force open …",
    );
  const asking =
    auth.may("locks:write") &&
    el(
      "button",
      {
        type: "button",
        data: { part: "ask" },
        on: { click: () => askForRelease("lock", { namespace, path, done: () => live.reload() }) },
      },
      "Ask for it …",
    );
  const branch =
    path.length > live.prefix.length &&
    el("a", { class: "small", href: href("locks", namespace, path) }, "Show only this branch");
  side.replaceChildren(
    el(
      "div",
      { class: "detail-head" },
      el("h2", { class: "name", text: pathText(path) }),
      el("button", { type: "button", class: "plain", "aria-label": "Close", on: { click: close } }, "✕"),
    ),
    el("h3", { data: { part: "held" } }),
    el("ul", { class: "holders", data: { part: "holders" } }),
    el("h3", { data: { part: "waiting" } }),
    el("ol", { class: "queue", data: { part: "queue" } }),
    el("h3", { data: { part: "awaiting" } }),
    el("ol", { class: "queue awaits", data: { part: "awaits" } }),
    el("div", { class: "detail-foot" }, branch, asking, force),
  );
}

function makeHolder(holder) {
  const pair = (label, value) => [el("dt", { text: label }), el("dd", {}, value)];
  const metadata = Object.entries(holder.metadata).map(([name, value]) => [
    el("dt", { class: "name", text: name }),
    el("dd", { class: "name", text: value }),
  ]);
  return el(
    "li",
    {},
    el(
      "div",
      { class: "owner" },
      el("strong", { class: "name", text: ownerText(holder) }),
      el("span", { class: `chip ${holder.mode === "WRITE" ? "write" : "read"}`, text: holder.mode }),
    ),
    el("p", { class: "phase small" }),
    el("p", { class: "asked small" }),
    el(
      "dl",
      {},
      pair("Time left", el("span", { class: "left number" })),
      pair(
        "Since",
        el("time", {
          datetime: holder.locked_at,
          title: dateTime(holder.locked_at),
          text: timeOfDay(holder.locked_at),
        }),
      ),
      pair("Token", el("code", { text: holder.fencing_token })),
      holder.session_id && pair("Session", el("code", { text: holder.session_id })),
      metadata,
    ),
  );
}

function makeWaiter(wait, key) {
  const own = wait.resources.find((resource) => pathKey(resource.path) === key);
  const others = wait.resources.length - 1;
  return el(
    "li",
    {},
    el(
      "div",
      { class: "owner" },
      el("span", { class: "name", text: ownerText(wait) }),
      el("span", { class: `chip ${own.mode === "WRITE" ? "write" : "read"}`, text: own.mode }),
      wait.upgrade && el("span", { class: "chip", text: "UPGRADE" }),
    ),
    el(
      "div",
      { class: "faint small" },
      "since ",
      timeOfDay(wait.waiting_since),
      ", gives up in ",
      el("span", { class: "left number" }),
      others > 0 && `, together with ${plural(others, "other lock")}`,
    ),
  );
}

/// Who gave the lock up to await a condition of it.
function makeAwait(one) {
  return el(
    "li",
    {},
    el(
      "div",
      { class: "owner" },
      el("span", { class: "name", text: ownerText(one) }),
      el("span", { class: "chip name", text: one.condition || "any signal" }),
    ),
    el(
      "div",
      { class: "faint small" },
      "since ",
      timeOfDay(one.waiting_since),
      ", time left: ",
      el("span", { class: "left number" }),
    ),
  );
}

/// Deletes the lock's holds, which the service writes into the audit log of the account.
function forceOpen(live, path) {
  const lock = live.locks.get(pathKey(path));
  const waiting = lock?.waiting ?? 0;
  const owners = (lock?.holders ?? [])
    .slice(0, 5)
    .map((holder) =>
      el(
        "li",
        {},
        el("span", { class: "name", text: ownerText(holder) }),
        " ",
        el("span", { class: `chip ${holder.mode === "WRITE" ? "write" : "read"}`, text: holder.mode }),
      ),
    );
  ask({
    title: `Force “${pathText(path)}” open?`,
    text: [
      "Whoever holds it loses it at once, and may go on working as if they had it. Only a store that checks fencing tokens is safe from them.",
      el("ul", { class: "list" }, owners),
      waiting ? `${plural(waiting, "request")} waiting for it; the next is granted at once.` : "Nobody waits for it.",
      `It is written into the audit log, with your key ${auth.who.keyId}.`,
    ],
    confirm: "Force open",
    danger: true,
    id: "force",
    act: async () => {
      await call("POST", ["namespaces", live.namespace, "lock-sets", "delete"], { body: { path } });
      live.reload();
      return `“${pathText(path)}” was forced open.`;
    },
  });
}
