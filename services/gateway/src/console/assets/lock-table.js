// Namespaces whose locks are in the memory of a leader: their badge, and how far a new leader's lock table is.

import { call } from "/console/api.js";
import { el, setContent, setText } from "/console/dom.js";
import { number, plural, timeOfDay } from "/console/format.js";
import { barOf } from "/console/page.js";

const LOOK_EVERY_MS = 2000;
const LOOK_AT_REBUILD_MS = 500;

const isSoft = (namespace) => namespace?.durability === "SESSION";
export const isRebuilding = (namespace) => namespace?.table?.state === "REBUILDING";

/// The badge of a namespace that is kept in memory; none for others.
export const badge = (namespace) =>
  isSoft(namespace) &&
  el("span", { class: "chip", title: "Its locks are in the memory of a leader.", text: "SESSION" });

/// A chip that says how far a lock table is, unless it grants locks.
export const progressChip = (namespace) =>
  isRebuilding(namespace) &&
  el("span", { class: "chip wait", text: `REBUILDING: waits for ${plural(namespace.table.missing, "session")}` });

/// Tells `tell` of the namespace now, and again and again if its lock table is in memory, until `signal`.
export async function watch(name, signal, tell) {
  while (!signal.aborted) {
    let found = null;
    try {
      if (!document.hidden) found = await call("GET", ["namespaces", name], { signal });
    } catch (problem) {
      // Whoever may not look, or looks at what is gone, is told so elsewhere.
      if (signal.aborted || (problem.status > 0 && problem.status < 500 && problem.status !== 429)) return;
    }
    if (found) tell(found);
    if (found && !isSoft(found)) return;
    await pause(isRebuilding(found) ? LOOK_AT_REBUILD_MS : LOOK_EVERY_MS, signal);
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/// What the views of a namespace have in common about its lock table: a badge for the title, and a notice while nothing
/// is granted. `show` is called with what `watch` tells.
export function lockTable() {
  const title = el("strong", { role: "status" });
  const text = el("p");
  const progress = el("div", { class: "small number" });
  const sessions = el("p", { class: "small" });
  const node = el(
    "section",
    { class: "notice wait", "aria-label": "Lock table", hidden: true },
    title,
    text,
    progress,
    sessions,
  );
  const mark = el("span");
  /// The epoch that is shown, and how many sessions it waited for at most.
  let [epoch, most] = [null, 0];

  function show(namespace) {
    const table = namespace?.table;
    setContent(mark, String(isSoft(namespace)), () => [" ", badge(namespace)]);
    node.hidden = !isSoft(namespace) || table?.state === "READY";
    if (node.hidden) return;
    if (table?.epoch !== epoch) [epoch, most] = [table?.epoch ?? null, 0];
    most = Math.max(most, table?.missing ?? 0);
    setText(title, table ? "Its lock table is being rebuilt: nothing is granted" : "Its leader cannot be asked now");
    setText(text, explain(table));
    const settled = most - (table?.missing ?? 0);
    setContent(progress, JSON.stringify([settled, most]), () =>
      most > 0 ? [`${number(settled)} of ${plural(most, "session")} settled`, barOf(settled / most)] : [],
    );
    setContent(sessions, JSON.stringify([table?.waiting_for, table?.missing]), () => listed(table));
  }

  return { mark, node, show };
}

function explain(table) {
  if (!table) return "Another one may be elected at this moment.";
  if (!table.since) return "A new leader begins its table.";
  const since = `since ${timeOfDay(table.since)}`;
  if (table.missing === 0) return `The leader has had its table ${since}, and waits for nobody.`;
  return `The leader has waited ${since} for ${plural(table.missing, "earlier session")} to be reported, or to end.`;
}

/// The sessions that a table waits for, as far as they are known. Ended ones in transition are not.
function listed(table) {
  const ids = table?.waiting_for ?? [];
  const others = (table?.missing ?? 0) - ids.length;
  const shown = ids.flatMap((id, index) => [index > 0 && ", ", el("code", { text: id })]);
  if (others > 0) shown.push(ids.length ? ` and ${plural(others, "other")}` : `${number(others)} in transition`);
  return shown;
}
