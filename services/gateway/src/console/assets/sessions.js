// Sessions of a namespace: what keeps holds alive.

import { auth } from "/console/auth.js";
import { call } from "/console/api.js";
import { ask } from "/console/dialog.js";
import { el, setText, table } from "/console/dom.js";
import { dateTime, duration, number, plural } from "/console/format.js";
import { empty, follow, head, liveProblem, notice, titleOf } from "/console/page.js";
import { countDown } from "/console/time.js";

export function open({ route, live }) {
  const problem = notice();
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Sessions", route));
  heading.append(summary);
  const columns = [
    {
      label: "Process",
      state: (session) => session.process_id,
      cell: (session) => [
        el("strong", { class: "name", text: session.process_id }),
        el("div", { class: "faint small" }, el("code", { text: session.session_id })),
      ],
    },
    { label: "Holds", right: true, state: (session) => session.holds, cell: (session) => number(session.holds) },
    { label: "Waits", right: true, state: (session) => session.waiting, cell: (session) => number(session.waiting) },
    {
      label: "Lives on for",
      state: (session) => session.ttl_ms,
      cell: (session) =>
        el(
          "span",
          { class: "lives" },
          el("span", { class: "number", data: { left: "" } }),
          el("span", { class: "faint small", text: ` of ${duration(session.ttl_ms)}` }),
          el("span", { class: "bar", "aria-hidden": "true" }, el("i", { data: { bar: "" } })),
        ),
    },
    { label: "Opened", state: (session) => session.opened_at, cell: (session) => dateTime(session.opened_at) },
    {
      label: "Metadata",
      state: (session) => session.metadata,
      cell: (session) =>
        Object.entries(session.metadata).map(([name, value]) =>
          el("div", { class: "name small", text: `${name}: ${value}` }),
        ),
    },
  ];
  if (auth.may("locks:write"))
    columns.push({
      label: "",
      wide: true,
      state: (session) => session.session_id,
      cell: (session) =>
        el(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": `End the session of ${session.process_id} …`,
            on: {
              click: () =>
                end(
                  live,
                  live.sessions.find((one) => one.session_id === session.session_id),
                ),
            },
          },
          "End …",
        ),
    });
  const list = table("Sessions", columns, [], (session) => session.session_id);
  const nothing = empty(
    "No sessions",
    "Programs that use the client library, the session protocol or `holdfast lock` appear here.",
  );
  const card = el("div", { class: "card table" }, list.node, nothing);

  function update() {
    liveProblem(live, problem);
    const { sessions } = live;
    nothing.hidden = sessions.length > 0;
    list.node.hidden = sessions.length === 0;
    setText(summary, `${plural(sessions.length, "session")}${live.moreSessions ? "; more are not shown" : ""}`);
    list.show(sessions);
    [...list.node.querySelectorAll(".lives")].forEach((left, index) =>
      countDown(left, sessions[index].ends, sessions[index].ttl_ms),
    );
  }

  const stop = follow(live, update);
  return { node: el("div", {}, heading, problem, card), stop };
}

function end(live, session) {
  ask({
    title: `End the session of “${session.process_id}”?`,
    text: `Its ${plural(session.holds, "hold")} and ${plural(session.waiting, "waiting request")} end with it, at once. The program is told when it is connected.`,
    confirm: "End session",
    danger: true,
    act: async () => {
      await call("DELETE", ["namespaces", live.namespace, "sessions", session.session_id]);
      live.reload();
      return `The session of “${session.process_id}” has ended.`;
    },
  });
}
