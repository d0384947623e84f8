// Who did what to accounts, keys, namespaces and forced locks.

import { list as listOf } from "/console/api.js";
import { auth } from "/console/auth.js";
import { el, table } from "/console/dom.js";
import { dateTime, pathText } from "/console/format.js";
import { empty, head, loading } from "/console/page.js";

const LOOK_EVERY_MS = 5000;
const SHOWN = 100;
const KINDS = {
  LOCK_DELETED: "bad",
  NAMESPACE_RESET: "bad",
  NAMESPACE_DELETED: "bad",
  API_KEY_DELETED: "wait",
  ACCOUNT_DELETED: "bad",
};

export function open() {
  const about = (entry) =>
    [
      entry.namespace && el("span", { class: "name", text: entry.namespace }),
      entry.path && el("span", { class: "name", text: ` › ${pathText(entry.path)}` }),
      entry.key_id && el("code", { class: "whole", text: entry.key_id }),
    ].filter(Boolean);
  const columns = [
    { label: "Time", cell: (entry) => el("time", { datetime: entry.at, text: dateTime(entry.at) }) },
    {
      label: "Action",
      cell: (entry) => el("span", { class: `chip ${KINDS[entry.action] ?? ""}`, text: entry.action }),
    },
    { label: "On", cell: about },
    {
      label: "By",
      cell: (entry) =>
        entry.actor_key_id ? el("code", { class: "whole", text: entry.actor_key_id }) : entry.actor.toLowerCase(),
    },
    {
      label: "Detail",
      cell: (entry) => [
        entry.detail && el("div", { class: "name soft", text: entry.detail }),
        el("div", { class: "faint small" }, "request ", el("code", { text: entry.request_id })),
      ],
    },
  ];
  if (auth.who.operator)
    columns.splice(1, 0, { label: "Account", cell: (entry) => el("code", { class: "whole", text: entry.account_id }) });
  const rows = table("Audit log, the latest first", columns, [], (entry) =>
    JSON.stringify([entry.at, entry.request_id, entry.action, entry.key_id, entry.path]),
  );
  const nothing = el(
    "div",
    { hidden: true },
    empty("Nothing yet", "Changes of keys and namespaces, forced locks and resets appear here."),
  );
  const shown = loading(
    (signal) => listOf(["audit"], "entries", { max: SHOWN, signal }),
    ({ items }) => {
      rows.show(items);
      rows.node.hidden = items.length === 0;
      nothing.hidden = items.length > 0;
    },
    LOOK_EVERY_MS,
  );
  return {
    node: el(
      "div",
      {},
      head("Audit log", `The latest ${SHOWN} entries: what was done, and by whom.`),
      shown.problem,
      el("div", { class: "card table" }, rows.node, nothing),
    ),
    stop: shown.stop,
  };
}
