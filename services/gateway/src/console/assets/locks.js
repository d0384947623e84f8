// The tree of locks, as it changes.

import { el, set, setText, sync } from "/console/dom.js";
import { number, pathKey, plural } from "/console/format.js";
import { detail } from "/console/lock-detail.js";
import { makeRow, showRow } from "/console/lock-row.js";
import { empty, follow, head, liveProblem, notice, titleOf } from "/console/page.js";
import { href } from "/console/route.js";
import { MAX_ROWS, rowsOf } from "/console/tree.js";

const MANY_ROWS = 200;

export function open({ route, live }) {
  const closed = new Set();
  let [selected, rows, filter, isArranged] = [null, [], "", false];
  const problem = notice();
  const summary = el("p", { class: "lead", "aria-live": "off" });
  const search = el("input", {
    type: "search",
    placeholder: "Filter locks and owners",
    "aria-label": "Filter locks and owners",
    on: {
      input: () => {
        filter = search.value.trim();
        update();
      },
    },
  });
  const body = el("div", { role: "rowgroup" });
  const columns = el(
    "div",
    { role: "row", class: "tree-head" },
    ["Lock", "State", "Held by", "Time left", "Queue"].map((label) =>
      el("span", { role: "columnheader", text: label }),
    ),
  );
  const grid = el(
    "div",
    { class: "tree", role: "treegrid", "aria-label": `Locks of ${route.namespace}`, on: { keydown, click } },
    el("div", { role: "rowgroup" }, columns),
    body,
  );
  const nothing = empty("Nothing is held or awaited here", "Locks appear here the moment somebody takes one.");
  const more = el("p", { class: "faint small" });
  const readOn = el("button", { type: "button", on: { click: () => live.readOn() } }, "Read 1,000 more");
  const rest = el("div", { class: "empty", hidden: true }, more, readOn);
  const side = el("aside", {
    class: "card detail",
    "aria-label": "The lock that is chosen",
    hidden: true,
    on: { keydown: (event) => event.key === "Escape" && choose(null) },
  });
  const heading = head(titleOf("Locks", route), null, search);
  heading.append(summary);
  const split = el("div", { class: "split" }, el("div", { class: "card" }, grid, nothing, rest), side);
  const node = el("div", {}, heading, crumbs(route), problem, split);

  function update() {
    liveProblem(live, problem);
    rows = rowsOf(live, filter ? new Set() : closed, filter);
    if (!isArranged && live.locks.size > 0) arrange();
    const shown = rows.slice(0, MAX_ROWS);
    const focused = [...body.children].indexOf(document.activeElement);
    sync(
      body,
      shown,
      (row) => row.key,
      makeRow,
      (element, row) => showRow(element, row, selected),
    );
    grid.hidden = rows.length === 0;
    nothing.hidden = rows.length > 0 || live.status === "opening";
    const left = [
      rows.length > MAX_ROWS && `${plural(rows.length - MAX_ROWS, "more row")} not shown: close some branches`,
      live.moreLocks && `the first ${number(live.locks.size)} held locks are read`,
      live.moreWaits && "the first 100 waiting requests are read",
      live.moreAwaits && "the first 100 that await conditions are read",
    ].filter(Boolean);
    rest.hidden = left.length === 0;
    readOn.hidden = !live.moreLocks;
    setText(more, left.join("; "));
    setText(
      summary,
      `${live.moreLocks ? "More than " : ""}${plural(live.locks.size, "lock")} held · ${plural(live.waits.length, "request")} waiting`,
    );
    const first = body.firstElementChild;
    if (first && !body.querySelector("[tabindex='0']")) set(first, "tabindex", 0);
    // Whoever stood on a lock that is gone stands on the one after it.
    if (focused >= 0 && !body.contains(document.activeElement)) focus(body.children[focused] ?? body.lastElementChild);
    showDetail();
  }

  /// A large tree begins with its branches closed.
  function arrange() {
    isArranged = true;
    if (rows.length <= MANY_ROWS) return;
    for (const row of rows.filter(({ depth, hasChildren }) => depth === 0 && hasChildren)) closed.add(row.key);
    rows = rowsOf(live, closed, filter);
  }

  function showDetail() {
    side.hidden = selected === null;
    set(split, "class", selected === null ? "split closed" : "split");
    if (selected !== null) detail(side, { live, path: JSON.parse(selected), close: () => choose(null) });
  }

  function choose(key) {
    const before = selected;
    selected = key;
    update();
    if (key === null && before) rowOf(before)?.focus();
    // On a phone the lock is shown over the lower part of the tree.
    else rowOf(key)?.scrollIntoView({ block: "nearest" });
  }

  const rowOf = (key) => [...body.children].find((row) => row.dataset.key === key);

  function focus(row) {
    if (!row) return;
    for (const other of body.querySelectorAll("[tabindex='0']")) set(other, "tabindex", -1);
    set(row, "tabindex", 0);
    row.focus();
  }

  function toggle(key, isOpen) {
    if (isOpen) closed.delete(key);
    else closed.add(key);
    update();
  }

  function click(event) {
    const row = event.target.closest("[role=row][data-key]");
    if (!row) return;
    focus(row);
    if (event.target.closest(".twist")) toggle(row.dataset.key, closed.has(row.dataset.key));
    else choose(row.dataset.key);
  }

  function keydown(event) {
    const row = event.target.closest("[role=row][data-key]");
    const at = rows.findIndex((one) => one.key === row?.dataset.key);
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const { key, hasChildren, isOpen, path } = rows[at];
    const parent = () => rowOf(pathKey(path.slice(0, -1)));
    const moves = {
      ArrowDown: () => focus(row.nextElementSibling),
      ArrowUp: () => focus(row.previousElementSibling),
      Home: () => focus(body.firstElementChild),
      End: () => focus(body.lastElementChild),
      ArrowRight: () => (hasChildren && !isOpen ? toggle(key, true) : hasChildren && focus(row.nextElementSibling)),
      ArrowLeft: () => (hasChildren && isOpen ? toggle(key, false) : focus(parent())),
      Enter: () => choose(key),
      " ": () => choose(key),
      Escape: () => choose(null),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }

  const stop = follow(live, update);
  return { node, stop };
}

/// Where one is when only a branch is shown, and the ways up from there.
function crumbs({ namespace, prefix }) {
  if (!prefix.length) return null;
  const links = prefix
    .slice(0, -1)
    .map((segment, index) => [
      el("a", { class: "name", href: href("locks", namespace, prefix.slice(0, index + 1)), text: segment }),
      " › ",
    ]);
  return el(
    "nav",
    { class: "crumbs", "aria-label": "Branch" },
    el("a", { href: href("locks", namespace), text: "All locks" }),
    " › ",
    links.flat(),
    el("span", { class: "name", "aria-current": "true", text: prefix.at(-1) }),
  );
}
