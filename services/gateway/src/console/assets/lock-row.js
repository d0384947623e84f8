// One row of the tree of locks.

import { el, set, setContent, setText } from "/console/dom.js";
import { ownerText, pathText, plural } from "/console/format.js";
import { countDown } from "/console/time.js";

/// The row of a path, still empty.
export function makeRow({ path }) {
  const cell = (kind, ...content) => el("span", { role: "gridcell", class: kind }, content);
  return el(
    "div",
    { role: "row", tabindex: "-1" },
    cell(
      "cell-name",
      el("span", { class: "twist", "aria-hidden": "true" }),
      el("span", { class: "name", text: path.at(-1) ?? pathText([]) }),
      el("span", { class: "below faint small" }),
    ),
    cell("cell-state"),
    cell("cell-owner"),
    cell(
      "cell-left",
      el("span", { data: { left: "" } }),
      el("span", { class: "bar", "aria-hidden": "true" }, el("i", { data: { bar: "" } })),
    ),
    cell("cell-queue"),
  );
}

/// Shows what is known of a path, and changes nothing that stayed the same.
export function showRow(element, { key, depth, lock, waits, awaits, below, isOpen, hasChildren }, selected) {
  set(element, "aria-level", depth + 1);
  set(element, "aria-expanded", hasChildren ? String(isOpen) : null);
  set(element, "aria-selected", String(key === selected));
  element.style.setProperty("--depth", depth);
  set(element, "data-state", lock ? stateOf(lock).kind : waits.length || awaits.length ? "wait" : "none");
  const [name, state, owner, left, queue] = element.children;
  setText(name.lastElementChild, hasChildren && below && !isOpen ? plural(below, "lock") : "");
  const shown = lock && stateOf(lock);
  setContent(state, shown?.text ?? "", () => shown && el("span", { class: `chip ${shown.kind}`, text: shown.text }));
  const owners = lock?.holders ?? [];
  const others = (lock?.holders_total ?? 0) - 1;
  const isAsked = owners.some((holder) => holder.release_requested);
  setContent(
    owner,
    JSON.stringify([owners.map(ownerText), others, isAsked]),
    () =>
      owners[0] && [
        el("span", { class: "name", text: ownerText(owners[0]) }),
        others > 0 && el("span", { class: "faint", text: ` and ${plural(others, "other")}` }),
        isAsked && el("span", { class: "chip wait", text: "asked" }),
      ],
  );
  const soonest = owners.filter((holder) => holder.ends !== null).sort((one, other) => one.ends - other.ends)[0];
  countDown(left, soonest?.ends ?? null, soonest?.total);
  if (!soonest) setText(left.firstElementChild, owners.length ? "with its session" : "");
  const waiting = Math.max(lock?.waiting ?? 0, waits.length);
  setContent(
    queue,
    JSON.stringify([waiting, waits.slice(0, 2).map(ownerText), awaits.length]),
    () => [
      waiting > 0 && el("span", { class: "chip wait", text: `${waiting} waiting` }),
      waiting > 0 && waits[0] && el("span", { class: "name faint next", text: `next: ${ownerText(waits[0])}` }),
      awaits.length > 0 && el("span", { class: "chip", text: `${awaits.length} awaiting` }),
    ],
  );
}

/// How a lock is held, in a word.
function stateOf(lock) {
  if (lock.holders.length && lock.holders.every((holder) => holder.phase === "TRANSITION"))
    return { kind: "fade", text: "TRANSITION" };
  return lock.state === "WRITE_LOCKED"
    ? { kind: "write", text: "WRITE" }
    : { kind: "read", text: lock.holders_total > 1 ? `READ × ${lock.holders_total}` : "READ" };
}
