// Barriers of a namespace: who has come to each, who is inside, and how the latest generations ended.

import { call, list } from "/console/api.js";
import { el, setText, table } from "/console/dom.js";
import { dateTime, number, ownerText, pathKey, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { NAMED, named } from "/console/queue.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
/// Of so many barriers it is loaded who has come, and how they went before.
const MAX_DETAILED = 10;
const KINDS = { TRIPPED: "good", BROKEN: "bad" };
const NOTHING = { arrivals: [], generations: [] };

export function open({ route, live }) {
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Barriers", route));
  heading.append(summary);
  const rows = table(
    "Barriers",
    [
      {
        label: "Barrier",
        state: (one) => [one.configured, one.double, one.on_loss, one.description],
        cell: (one) => [
          el("strong", { class: "name", text: pathText(one.path) }),
          el("div", { class: "faint small", text: aboutText(one) }),
        ],
      },
      {
        label: "Generation",
        right: true,
        state: (one) => one.generation,
        cell: (one) => el("span", { class: "number", text: number(one.generation) }),
      },
      {
        label: "Arrived",
        state: (one) => [one.arrived, one.parties, one.came.map(ownerText)],
        cell: (one) => [
          el(
            "span",
            { class: "meter" },
            `${number(one.arrived)} of ${number(one.parties)}`,
            barOf(one.parties === 0 ? 1 : one.arrived / one.parties),
          ),
          people(one.came, one.arrived, "arrived"),
        ],
      },
      {
        label: "Inside",
        state: (one) => [one.inside, one.inside_generation, one.entered.map(ownerText)],
        cell: (one) =>
          one.double && [
            number(one.inside),
            one.inside > 0 &&
              el("span", { class: "faint small", text: ` of generation ${number(one.inside_generation)}` }),
            people(one.entered, one.inside, "inside"),
          ],
      },
      {
        label: "Latest generations",
        state: (one) => one.ended.map((ended) => [ended.generation, ended.outcome, ended.lost]),
        cell: (one) =>
          one.ended.map((ended) =>
            el(
              "div",
              { class: "small" },
              el("span", { class: `chip ${KINDS[ended.outcome] ?? ""}`, text: ended.outcome }),
              el("span", { class: "faint", title: dateTime(ended.ended_at), text: ` ${endText(ended)}` }),
            ),
          ),
      },
    ],
    [],
    (one) => pathKey(one.path),
  );
  const nothing = empty("No barriers", "They appear here once somebody configures one or arrives at one.");
  const card = el("div", { class: "card table", hidden: true }, rows.node, nothing);
  const shown = loading(
    async (signal) => {
      const path = ["namespaces", live.namespace, "barriers"];
      const { items, more } = await list(path, "barriers", { max: MAX_SHOWN, signal });
      return { items, more, details: await loadDetails(path, items, signal) };
    },
    ({ items, more, details }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      setText(summary, `${plural(items.length, "barrier")}${more ? "; more are not shown" : ""}`);
      rows.show(
        items.map((one) => {
          const { arrivals, generations } = details.get(pathKey(one.path)) ?? NOTHING;
          const [came, entered] = [false, true].map((inside) =>
            arrivals.filter((arrival) => arrival.inside === inside).slice(0, NAMED),
          );
          return { ...one, came, entered, ended: generations.slice(0, NAMED) };
        }),
      );
    },
    LOOK_EVERY_MS,
  );
  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}

/// What kind of barrier it is, and for what.
const aboutText = (one) =>
  [
    one.double && "double",
    one.on_loss === "WITHDRAW" && "who leaves withdraws",
    !one.configured && "gone some time after the last one left",
    one.description,
  ]
    .filter(Boolean)
    .join("; ");

/// The first ones by name, and how many more there are.
const people = (owners, total, verb) => [
  owners.map((owner) => named(ownerText(owner), verb)),
  owners.length > 0 &&
    total > owners.length &&
    el("div", { class: "faint small", text: `and ${number(total - owners.length)} more` }),
];

/// Which generation ended, with how many, and how many of a double barrier were lost inside.
const endText = (ended) =>
  [
    `generation ${number(ended.generation)}`,
    `${number(ended.parties)} in it`,
    ended.lost !== null && `all left, ${number(ended.lost)} lost`,
  ]
    .filter(Boolean)
    .join(", ");

/// Who has come to the first barriers, and how their latest generations ended, by path.
async function loadDetails(path, items, signal) {
  const load = async (one) => {
    try {
      return [pathKey(one.path), await call("POST", [...path, "get"], { body: { path: one.path }, signal })];
    } catch (problem) {
      if (problem.code !== "PRIMITIVE_NOT_FOUND") throw problem;
      return [pathKey(one.path), NOTHING];
    }
  };
  return new Map(await Promise.all(items.slice(0, MAX_DETAILED).map(load)));
}
