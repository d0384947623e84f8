// What happens in a namespace, the latest first.

import { el, setText, table } from "/console/dom.js";
import { dateTime, number, ownerText, pathText, plural, timeOfDay } from "/console/format.js";
import { empty, follow, head, liveProblem, notice, titleOf } from "/console/page.js";

const KINDS = {
  ACQUIRED: "good",
  RELEASED: "",
  EXPIRED: "wait",
  DELETED: "bad",
  RESET: "bad",
  SESSION_OPENED: "read",
  SESSION_ENDED: "",
  RELEASE_REQUESTED: "wait",
  AWAITING: "wait",
  SIGNALLED: "good",
  PERMITS_ACQUIRED: "good",
  PERMITS_RELEASED: "",
  SEMAPHORE_CONFIGURED: "read",
  SEMAPHORE_DELETED: "bad",
  MEMBERS_TAKEN: "good",
  MEMBERS_RETURNED: "",
  POOL_CONFIGURED: "read",
  POOL_DELETED: "bad",
  LATCH_CREATED: "read",
  LATCH_COMPLETED: "good",
  LATCH_EXPIRED: "wait",
  LATCH_DELETED: "bad",
  BARRIER_TRIPPED: "good",
  BARRIER_BROKEN: "bad",
  BARRIER_LEFT: "",
};
const MAX_ROWS = 200;

export function open({ route, live }) {
  const problem = notice();
  const summary = el("p", { class: "lead" });
  let held = null;
  const changed = { on: { input: () => update() } };
  const kind = el(
    "select",
    { "aria-label": "Kind of event", ...changed },
    el("option", { value: "", text: "All events" }),
    Object.keys(KINDS).map((name) => el("option", { value: name, text: name })),
  );
  const words = el("input", {
    type: "search",
    placeholder: "Filter names and owners",
    "aria-label": "Filter names and owners",
    ...changed,
  });
  const pause = el(
    "button",
    {
      type: "button",
      "aria-pressed": "false",
      on: {
        click: () => {
          held = held ? null : live.events.slice();
          pause.setAttribute("aria-pressed", String(held !== null));
          setText(pause, held ? "Go on" : "Pause");
          update();
        },
      },
    },
    "Pause",
  );
  const heading = head(titleOf("Events", route), null, words, kind, pause);
  heading.append(summary);
  const list = table(
    "Events, the latest first",
    [
      {
        label: "Time",
        cell: (event) =>
          el("time", { class: "number", datetime: event.at, title: dateTime(event.at), text: timeOfDay(event.at) }),
      },
      { label: "Event", cell: (event) => el("span", { class: `chip ${KINDS[event.type] ?? ""}`, text: event.type }) },
      {
        label: "What",
        cell: (event) => [
          event.claims.map((claim) => what(claim.path, claim.mode)),
          event.path && what(event.path, event.kind),
          el("div", { class: "faint small name", text: detailText(event) }),
        ],
      },
      {
        label: "Owner",
        cell: (event) => [
          el("span", { class: "name", text: ownerText(event) }),
          event.session_id && el("div", { class: "faint small" }, el("code", { text: event.session_id })),
        ],
      },
      {
        label: "Token",
        right: true,
        cell: (event) => (event.fencing_token === null ? "" : el("code", { text: event.fencing_token })),
      },
      { label: "Revision", right: true, cell: (event) => el("code", { text: event.revision }) },
    ],
    [],
    (event) => String(event.revision),
  );
  const nothing = empty("No events", "Whatever is acquired, released or ends appears here.");
  const card = el("div", { class: "card table" }, list.node, nothing);

  const isShown = (event) => {
    const sought = words.value.trim().toLowerCase();
    const paths = [...event.claims.map((claim) => claim.path), event.path ?? [], event.members ?? []];
    const names = [event.process_id, event.holder, event.session_id, event.condition, ...paths.flat()];
    return (
      (!kind.value || event.type === kind.value) &&
      (!sought || names.some((name) => name?.toLowerCase().includes(sought)))
    );
  };

  function update() {
    liveProblem(live, problem);
    const found = (held ?? live.events).filter(isShown);
    list.show(found.slice(0, MAX_ROWS));
    list.node.hidden = found.length === 0;
    nothing.hidden = found.length > 0 || live.status === "opening";
    const waiting = held ? live.events.findIndex((event) => event.revision === held[0]?.revision) : 0;
    setText(
      summary,
      `${found.length > MAX_ROWS ? `The latest ${MAX_ROWS} of ` : ""}${number(found.length)} in memory${held ? ` · paused, ${number(Math.max(0, waiting))} new since` : ""}`,
    );
  }

  const stop = follow(live, update);
  return { node: el("div", {}, heading, problem, card), stop };
}

const what = (path, about) =>
  el(
    "div",
    {},
    el("span", { class: "name", text: pathText(path) }),
    el("span", { class: "faint small", text: ` ${about}` }),
  );

/// What else is known of an event of another thing than locks.
const detailText = (event) =>
  [
    event.weight !== undefined && plural(event.weight, "permit"),
    event.members?.join(", "),
    event.condition && `condition ${event.condition}`,
    event.generation !== undefined && `generation ${number(event.generation)}`,
    event.parties !== undefined && plural(event.parties, "party", "parties"),
    event.cause ?? event.woken,
  ]
    .filter(Boolean)
    .join("; ");
