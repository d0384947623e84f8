// Semaphores of a namespace: how much of each is in use, and who waits for it.

import { call, list } from "/console/api.js";
import { el, setText, table } from "/console/dom.js";
import { number, ownerText, pathKey, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
const MAX_WAITS = 100;
/// So many of a queue are named.
const NAMED = 3;

export function open({ route, live }) {
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Semaphores", route));
  heading.append(summary);
  const rows = table(
    "Semaphores",
    [
      {
        label: "Semaphore",
        state: (one) => [one.configured, one.description],
        cell: (one) => [
          el("strong", { class: "name", text: pathText(one.path) }),
          el("div", { class: "faint small", text: one.configured ? one.description : "gone with its last hold" }),
        ],
      },
      {
        label: "In use",
        right: true,
        state: (one) => [one.in_use, one.permits],
        cell: (one) =>
          el(
            "span",
            { class: "meter" },
            `${number(one.in_use)} of ${number(one.permits)}`,
            barOf(one.permits === 0 ? 1 : one.in_use / one.permits, one.available === 0),
          ),
      },
      { label: "Free", right: true, state: (one) => one.available, cell: (one) => number(one.available) },
      { label: "Holds", right: true, state: (one) => one.holders_total, cell: (one) => number(one.holders_total) },
      {
        label: "Queue",
        state: (one) => [one.waiting, one.queue.map((wait) => [ownerText(wait), wait.weight])],
        cell: (one) => [
          one.waiting > 0 && el("span", { class: "chip wait", text: `${number(one.waiting)} waiting` }),
          one.queue.map((wait, index) =>
            el(
              "div",
              { class: "small" },
              el("span", { class: "name", text: `${index + 1}. ${ownerText(wait)}` }),
              el("span", { class: "faint", text: ` ${plural(wait.weight, "permit")}` }),
            ),
          ),
        ],
      },
    ],
    [],
    (one) => pathKey(one.path),
  );
  const nothing = empty("No semaphores", "They appear here once somebody configures one or acquires permits.");
  const card = el("div", { class: "card table", hidden: true }, rows.node, nothing);
  const shown = loading(
    async (signal) => {
      const of = (path) => ["namespaces", live.namespace, path];
      const query = { kinds: "semaphores", page_size: MAX_WAITS };
      const [{ items, more }, { waits }] = await Promise.all([
        list(of("semaphores"), "semaphores", { max: MAX_SHOWN, signal }),
        call("GET", of("waits"), { query, signal }),
      ]);
      return { items, more, waits };
    },
    ({ items, more, waits }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      setText(summary, `${plural(items.length, "semaphore")}${more ? "; more are not shown" : ""}`);
      rows.show(items.map((one) => ({ ...one, queue: queueOf(one, waits) })));
    },
    LOOK_EVERY_MS,
  );
  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}

/// Those who wait for a semaphore and go first.
const queueOf = ({ path }, waits) =>
  waits
    .filter((wait) => pathKey(wait.path) === pathKey(path))
    .sort((one, other) => one.reason.queue_position - other.reason.queue_position)
    .slice(0, NAMED);
