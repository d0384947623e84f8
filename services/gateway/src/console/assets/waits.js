// Who waits for whom: as a drawing, and in words.

import { el, setText, table } from "/console/dom.js";
import { ownerKey, ownerText, pathText, plural, timeOfDay } from "/console/format.js";
import { draw } from "/console/graph.js";
import { empty, follow, head, liveProblem, notice, titleOf } from "/console/page.js";
import { href } from "/console/route.js";
import { countDown } from "/console/time.js";

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
  const lock = (resource) =>
    el(
      "span",
      { class: "row" },
      el("a", { class: "name", href: href("locks", live.namespace, resource.path), text: pathText(resource.path) }),
      mode(resource.mode),
    );
  const list = table(
    "Waiting requests, in the order in which they began to wait",
    [
      {
        label: "Who waits",
        state: (wait) => [wait.process_id, wait.holder],
        cell: (wait) => el("strong", { class: "name", text: ownerText(wait) }),
      },
      { label: "For", state: (wait) => wait.resources, cell: (wait) => wait.resources.map(lock) },
      {
        label: "Place",
        right: true,
        state: (wait) => wait.reason.queue_position,
        cell: (wait) => `${wait.reason.queue_position + 1}.`,
      },
      {
        label: "Because of",
        state: (wait) => wait.reason.blockers.map((blocker) => [blocker.process_id, blocker.waiting, blocker.path]),
        cell: (wait) =>
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
    (wait) => JSON.stringify([ownerKey(wait), wait.request_id, wait.waiting_since]),
  );
  const nothing = el(
    "div",
    { class: "card" },
    empty("Nobody waits", "Requests appear here while they wait for a lock, with whoever is in their way."),
  );
  const legend = el(
    "p",
    { class: "legend small faint" },
    el("span", { class: "edge" }, "waits for a holder"),
    el("span", { class: "edge dashed" }, "waits behind another request"),
  );
  const some = el(
    "div",
    {},
    el("figure", { class: "card" }, drawing, el("figcaption", {}, legend)),
    el("div", { class: "card table" }, list.node),
  );

  function update() {
    liveProblem(live, problem);
    const { waits } = live;
    nothing.hidden = waits.length > 0 || live.status === "opening";
    some.hidden = waits.length === 0;
    setText(summary, `${plural(waits.length, "request")} waiting${live.moreWaits ? "; the first 100 are shown" : ""}`);
    list.show(waits);
    [...list.node.querySelectorAll("tbody tr")].forEach((row, index) => {
      const left = row.querySelector(".give-up");
      if (left) countDown(left, waits[index].ends, null);
    });
    draw(drawing, waits);
  }

  const stop = follow(live, update);
  return { node: el("div", {}, heading, problem, nothing, some), stop };
}

const mode = (name) => el("span", { class: `chip ${name === "WRITE" ? "write" : "read"}`, text: name });
