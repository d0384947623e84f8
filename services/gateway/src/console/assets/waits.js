// Who waits, for whatever, and for whom: of locks as a drawing too.

import { el, setText, table } from "/console/dom.js";
import { ownerKey, ownerText, pathText, plural, timeOfDay } from "/console/format.js";
import { draw } from "/console/graph.js";
import { empty, follow, head, liveProblem, notice, titleOf } from "/console/page.js";
import { href } from "/console/route.js";
import { wantText } from "/console/queue.js";
import { countDown } from "/console/time.js";

/// Why requests for permits and members wait, by the code of their reason.
const REASONS = { EXHAUSTED: "too little is free", QUEUED: "others wait before it" };

export function open({ route, live }) {
  const problem = notice();
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Waits", route));
  heading.append(summary);
  const drawing = el("div", {
    class: "drawing",
    tabindex: "0",
    role: "region",
    "aria-label": "Wait-for graph, scrolls sideways",
  });
  const lockLink = (path) =>
    el("a", { class: "name", href: href("locks", live.namespace, path), text: pathText(path) });
  const lock = (resource) => el("span", { class: "row" }, lockLink(resource.path), mode(resource.mode));
  const views = { semaphore: "semaphores", pool: "pools" };
  const thing = (wait) => [
    el(
      "span",
      { class: "row" },
      views[wait.kind]
        ? el("a", { class: "name", href: href(views[wait.kind], live.namespace), text: pathText(wait.path) })
        : lockLink(wait.path),
      el("span", { class: "chip", text: wait.kind }),
    ),
    el("div", { class: "faint small name", text: thingText(wait) }),
  ];
  const list = table(
    "Waiting requests, in the order in which they began to wait",
    [
      {
        label: "Who waits",
        state: (wait) => [wait.process_id, wait.holder],
        cell: (wait) => el("strong", { class: "name", text: ownerText(wait) }),
      },
      {
        label: "For",
        state: (wait) => [wait.resources, wait.kind, wait.path, wait.kind && thingText(wait)],
        cell: (wait) => (wait.kind ? thing(wait) : wait.resources.map(lock)),
      },
      {
        label: "Place",
        right: true,
        state: (wait) => wait.reason.queue_position,
        cell: (wait) => `${wait.reason.queue_position + 1}.`,
      },
      {
        label: "Because of",
        state: (wait) => [
          reasonText(wait),
          wait.reason.blockers.map((blocker) => [blocker.process_id, blocker.waiting, blocker.path]),
        ],
        cell: (wait) => [
          el("span", { class: "faint", text: reasonText(wait) }),
          wait.reason.blockers.map((blocker) =>
            el(
              "div",
              {},
              el("span", { class: "name", text: ownerText(blocker) }),
              el("span", {
                class: "faint",
                text: ` ${blocker.waiting ? "waits before it for" : "holds"} ${pathText(blocker.path)}`,
              }),
            ),
          ),
        ],
      },
      {
        label: "Since",
        right: true,
        state: (wait) => wait.waiting_since,
        cell: (wait) => timeOfDay(wait.waiting_since),
      },
      {
        label: "Gives up in",
        right: true,
        state: (wait) => wait.expires_at === null,
        cell: (wait) => (wait.ends === null ? "no limit" : el("span", { class: "number give-up" })),
      },
    ],
    [],
    (wait) => JSON.stringify([ownerKey(wait), wait.request_id, wait.waiting_since, wait.kind, wait.path]),
  );
  const nothing = el(
    "div",
    { class: "card" },
    empty(
      "Nobody waits",
      "Requests appear here while they wait for a lock, for permits or members, or await a condition.",
    ),
  );
  const legend = el(
    "p",
    { class: "legend small faint" },
    el("span", { class: "edge" }, "waits for a holder"),
    el("span", { class: "edge dashed" }, "waits behind another request"),
  );
  const figure = el("figure", { class: "card" }, drawing, el("figcaption", {}, legend));
  const some = el("div", {}, figure, el("div", { class: "card table" }, list.node));

  function update() {
    liveProblem(live, problem);
    const waits = live.allWaits;
    nothing.hidden = waits.length > 0 || live.status === "opening";
    some.hidden = waits.length === 0;
    setText(summary, `${plural(waits.length, "request")} waiting${live.moreOfAllWaits ? "; more are not shown" : ""}`);
    // Nobody is in the way of the others: whoever returns something lets them go on.
    figure.hidden = live.waits.length === 0;
    list.show(waits);
    [...list.node.querySelectorAll("tbody tr")].forEach((row, index) => {
      const left = row.querySelector(".give-up");
      if (left) countDown(left, waits[index].ends, null);
    });
    draw(drawing, live.waits);
  }

  const stop = follow(live, update);
  return { node: el("div", {}, heading, problem, nothing, some), stop };
}

/// How much of a thing it waits for, or what signal.
function thingText(wait) {
  if (wait.kind === "condition") return wait.condition ? `condition ${wait.condition}` : "any signal";
  return wantText(
    wait,
    wait.member ?? (wait.kind === "pool" ? plural(wait.count, "member") : plural(wait.weight, "permit")),
  );
}

/// Why whoever waits for another thing than locks waits; of locks, whoever is in the way says so.
function reasonText(wait) {
  if (!wait.kind) return "";
  return wait.kind === "condition" ? "no signal has come" : (REASONS[wait.reason.code] ?? "");
}

const mode = (name) => el("span", { class: `chip ${name === "WRITE" ? "write" : "read"}`, text: name });
