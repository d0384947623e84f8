// Pools of a namespace: which members of each are free, who has the others, and who waits.

import { call, list } from "/console/api.js";
import { el, setText, table } from "/console/dom.js";
import { number, ownerText, pathKey, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { named, placeText, queueOf, wantText } from "/console/queue.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
const MAX_WAITS = 100;
/// Of so many pools the members are loaded, and so many members of each, the first by name.
const MAX_DETAILED = 10;
const MAX_MEMBERS = 12;

export function open({ route, live }) {
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Pools", route));
  heading.append(summary);
  const rows = table(
    "Pools",
    [
      {
        label: "Pool",
        state: (one) => one.description,
        cell: (one) => [
          el("strong", { class: "name", text: pathText(one.path) }),
          el("div", { class: "faint small", text: one.description }),
        ],
      },
      {
        label: "In use",
        right: true,
        state: (one) => [one.in_use, one.members_total],
        cell: (one) =>
          el(
            "span",
            { class: "meter" },
            `${number(one.in_use)} of ${number(one.members_total)}`,
            barOf(one.members_total === 0 ? 1 : one.in_use / one.members_total, one.free === 0),
          ),
      },
      { label: "Free", right: true, state: (one) => one.free, cell: (one) => number(one.free) },
      {
        label: "Members",
        state: (one) => one.members.map((member) => [member.name, memberText(member)]),
        cell: (one) => [
          one.members.map((member) => named(member.name, memberText(member))),
          one.members.length > 0 &&
            one.members_total > one.members.length &&
            el("div", { class: "faint small", text: `the first ${number(one.members.length)} by name` }),
        ],
      },
      {
        label: "Queue",
        state: (one) => [
          one.waiting,
          one.queue.map((wait) => [placeText(wait), wait.member, wait.count, wait.priority]),
        ],
        cell: (one) => [
          one.waiting > 0 && el("span", { class: "chip wait", text: `${number(one.waiting)} waiting` }),
          one.queue.map((wait) => named(placeText(wait), wantText(wait, wait.member ?? plural(wait.count, "member")))),
        ],
      },
    ],
    [],
    (one) => pathKey(one.path),
  );
  const nothing = empty("No pools", "They appear here once somebody configures one.");
  const card = el("div", { class: "card table", hidden: true }, rows.node, nothing);
  const shown = loading(
    async (signal) => {
      const of = (path) => ["namespaces", live.namespace, path];
      const query = { kinds: "pools", page_size: MAX_WAITS };
      const [{ items, more }, { waits }] = await Promise.all([
        list(of("pools"), "pools", { max: MAX_SHOWN, signal }),
        call("GET", of("waits"), { query, signal }),
      ]);
      const members = await loadMembers(of("pools"), items, signal);
      return { items, more, waits, members };
    },
    ({ items, more, waits, members }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      setText(summary, `${plural(items.length, "pool")}${more ? "; more are not shown" : ""}`);
      rows.show(
        items.map((one) => ({
          ...one,
          queue: queueOf(one, waits),
          members: members.get(pathKey(one.path)) ?? [],
        })),
      );
    },
    LOOK_EVERY_MS,
  );
  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}

/// Who has a member, or why nobody can take it.
const memberText = (member) =>
  [
    member.holder && `held by ${ownerText(member.holder)}`,
    member.leaving && "leaves",
    member.disabled && "disabled",
    member.rests_ms !== null && "rests",
  ]
    .filter(Boolean)
    .join(", ") || "free";

/// The first members of the first pools, by path.
async function loadMembers(path, items, signal) {
  const load = async (one) => {
    const body = { path: one.path, page_size: MAX_MEMBERS };
    try {
      const { members } = await call("POST", [...path, "get"], { body, signal });
      return [pathKey(one.path), members];
    } catch (problem) {
      if (problem.code !== "PRIMITIVE_NOT_FOUND") throw problem;
      return [pathKey(one.path), []];
    }
  };
  return new Map(await Promise.all(items.slice(0, MAX_DETAILED).map(load)));
}
