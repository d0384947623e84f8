// Latches of a namespace: what is done of each, and how long it has for the rest.

import { list } from "/console/api.js";
import { el, setText, table } from "/console/dom.js";
import { dateTime, number, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { countDown, endsAt } from "/console/time.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
const KINDS = { ACTIVE: "wait", COMPLETED: "good", EXPIRED: "bad" };

export function open({ route, live }) {
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Latches", route));
  heading.append(summary);
  const rows = table(
    "Latches",
    [
      {
        label: "Latch",
        state: (latch) => latch.description,
        cell: (latch) => [
          el("strong", { class: "name", text: pathText(latch.path) }),
          el("div", { class: "faint small", text: latch.description }),
        ],
      },
      {
        label: "Status",
        state: (latch) => latch.status,
        cell: (latch) => el("span", { class: `chip ${KINDS[latch.status] ?? ""}`, text: latch.status }),
      },
      {
        label: "Done",
        right: true,
        state: (latch) => [latch.done, latch.total],
        cell: (latch) =>
          el(
            "span",
            { class: "meter" },
            `${number(latch.done)} of ${number(latch.total)}`,
            barOf(latch.total === 0 ? 1 : latch.done / latch.total),
          ),
      },
      {
        label: "Time left",
        right: true,
        state: (latch) => latch.remaining_ms === null,
        cell: (latch) => latch.remaining_ms !== null && el("span", { class: "number time-left" }),
      },
      {
        label: "Finished",
        state: (latch) => latch.finished_at,
        cell: (latch) => latch.finished_at && dateTime(latch.finished_at),
      },
    ],
    [],
    (latch) => String(latch.id),
  );
  const nothing = empty("No latches", "They appear here from their creation until some time after they are final.");
  const card = el("div", { class: "card table", hidden: true }, rows.node, nothing);
  const shown = loading(
    (signal) => list(["namespaces", live.namespace, "latches"], "latches", { max: MAX_SHOWN, signal }),
    ({ items, more }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      const active = items.filter((latch) => latch.status === "ACTIVE").length;
      setText(
        summary,
        `${plural(items.length, "latch", "latches")}, ${number(active)} active${more ? "; more are not shown" : ""}`,
      );
      rows.show(items);
      [...rows.node.querySelectorAll("tbody tr")].forEach((row, index) => {
        const left = row.querySelector(".time-left");
        if (left) countDown(left, endsAt(items[index].remaining_ms), null);
      });
    },
    LOOK_EVERY_MS,
  );
  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}
