// Pools of a namespace: which members of each are free, who has the others, and who waits.

import { auth } from "/console/auth.js";
import { call, list } from "/console/api.js";
import { said, toast } from "/console/dialog.js";
import { el, setText, table } from "/console/dom.js";
import { number, ownerText, pathKey, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { named, placeText, queueOf, wantText } from "/console/queue.js";
import { countDown, endsAt } from "/console/time.js";

const LOOK_EVERY_MS = 2000;
/// So many pools are read at first, and so many more each time.
const POOLS_OF_PAGE = 200;
const MAX_WAITS = 100;
/// Of so many pools the members are loaded at first, and so many members of each, the first by name.
const MAX_DETAILED = 10;
const FIRST_MEMBERS = 12;
/// So many more members each time, and at most so many in a call.
const MORE_MEMBERS = 100;
const MEMBERS_OF_PAGE = 1000;

export function open({ route, live }) {
  const of = (...path) => ["namespaces", live.namespace, ...path];
  let maxPools = POOLS_OF_PAGE;
  /// How many members somebody wants to see, by the path of their pool.
  const wanted = new Map();
  const readMembers = (one) => {
    wanted.set(pathKey(one.path), one.members.length === 0 ? FIRST_MEMBERS : one.members.length + MORE_MEMBERS);
    shown.again();
  };
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
        state: (one) => [
          one.members_total,
          one.members.map((member) => [member.name, memberText(member), member.rests_ms !== null, member.disabled]),
        ],
        cell: (one) => [
          one.members.map((member) => memberRow(one, member, change)),
          one.members_total > one.members.length && moreMembers(one, readMembers),
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
  const readOn = el("button", { type: "button", on: { click: readPools } }, `Read ${number(POOLS_OF_PAGE)} more`);
  const rest = el("div", { class: "empty", hidden: true }, readOn);
  const card = el("div", { class: "card table", hidden: true }, rows.node, rest, nothing);
  const shown = loading(
    async (signal) => {
      const query = { kinds: "pools", page_size: MAX_WAITS };
      const [{ items, more }, { waits }] = await Promise.all([
        list(of("pools"), "pools", { max: maxPools, signal }),
        call("GET", of("waits"), { query, signal }),
      ]);
      const members = await loadMembers(of("pools"), items, wanted, signal);
      return { items, more, waits, members };
    },
    ({ items, more, waits, members }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      setText(summary, `${plural(items.length, "pool")}${more ? "; more are not shown" : ""}`);
      rest.hidden = !more;
      const pools = items.map((one) => ({
        ...one,
        queue: queueOf(one, waits),
        members: members.get(pathKey(one.path)) ?? [],
      }));
      rows.show(pools);
      [...rows.node.querySelectorAll("tbody tr")].forEach((row, index) => countRests(row, pools[index]));
    },
    LOOK_EVERY_MS,
  );

  function readPools() {
    maxPools += POOLS_OF_PAGE;
    shown.again();
  }

  /// Enables or disables a member, which the service writes into the audit log.
  async function change(one, verb, member) {
    try {
      await call("POST", of("pools", "change"), { body: { path: one.path, [verb]: [member.name] } });
    } catch (problem) {
      toast(said(problem), "bad");
    }
    shown.again();
  }

  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}

/// Who has a member, or why nobody can take it.
const memberText = (member) =>
  [
    member.holder && `held by ${ownerText(member.holder)}${member.holder.release_requested ? ", asked" : ""}`,
    member.leaving && "leaves",
    member.disabled && "disabled",
    member.rests_ms !== null && "rests for",
  ]
    .filter(Boolean)
    .join(", ") || "free";

/// A member with its rest and its switches.
function memberRow(one, member, change) {
  const rests = member.rests_ms !== null;
  const row = named(member.name, memberText(member));
  if (rests) row.append(" ", el("span", { class: "faint number rest-left" }));
  if (!auth.may("locks:force") || member.leaving) return row;
  const button = (label, verb) =>
    el(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `${label}: ${member.name} of ${pathText(one.path)}`,
        on: { click: () => change(one, verb, member) },
      },
      label,
    );
  row.append(
    " ",
    member.disabled ? button("Enable", "enable") : button("Disable", "disable"),
    rests && !member.disabled ? button("End rest", "enable") : "",
  );
  return row;
}

function moreMembers(one, readMembers) {
  const shown = one.members.length;
  const label = shown === 0 ? "Show members" : `Show more than the first ${number(shown)} by name`;
  const on = { click: () => readMembers(one) };
  return el("button", { type: "button", class: "plain", data: { more: "" }, on }, label);
}

/// Lets the rests in the row of a pool count down.
function countRests(row, one) {
  const resting = one.members.filter((member) => member.rests_ms !== null);
  [...row.querySelectorAll(".rest-left")].forEach((left, index) =>
    countDown(left, endsAt(resting[index].rests_ms), null),
  );
}

/// The first members of the first pools, and of those of which somebody wants to see more, by path.
async function loadMembers(path, items, wanted, signal) {
  const maxOf = (one, index) => wanted.get(pathKey(one.path)) ?? (index < MAX_DETAILED ? FIRST_MEMBERS : 0);
  const load = async (one, max) => {
    const members = [];
    let token = null;
    do {
      const page_size = Math.min(max - members.length, MEMBERS_OF_PAGE);
      const body = { path: one.path, page_size, page_token: token ?? undefined };
      const page = await call("POST", [...path, "get"], { body, signal });
      members.push(...page.members);
      token = page.next_page_token;
    } while (token && members.length < max);
    return members;
  };
  const loadIfThere = async (one, max) => {
    try {
      return [pathKey(one.path), await load(one, max)];
    } catch (problem) {
      if (problem.code !== "PRIMITIVE_NOT_FOUND") throw problem;
      return [pathKey(one.path), []];
    }
  };
  const detailed = items.map((one, index) => [one, maxOf(one, index)]).filter(([, max]) => max > 0);
  return new Map(await Promise.all(detailed.map(([one, max]) => loadIfThere(one, max))));
}
