// Latches of a namespace: what is done of each, how many wait for it, and how long it has for the rest.

import { call, list } from "/console/api.js";
import { el, setText, table } from "/console/dom.js";
import { dateTime, number, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { countDown, endsAt } from "/console/time.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
/// Of so many latches of which something is done it is loaded what, and so many ids or ranges of each, the first in order.
const MAX_DETAILED = 10;
const MAX_JOBS = 12;
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
        label: "What is done",
        state: (latch) => [latch.jobs, latch.done],
        cell: (latch) => latch.jobs.length > 0 && jobsOf(latch),
      },
      {
        label: "Waiting",
        right: true,
        state: (latch) => latch.waiters,
        cell: (latch) => latch.waiters !== null && el("span", { class: "number waiters", text: number(latch.waiters) }),
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
    async (signal) => {
      const path = ["namespaces", live.namespace, "latches"];
      const { items, more } = await list(path, "latches", { max: MAX_SHOWN, signal });
      return { items, more, jobs: await loadJobs(path, items, signal) };
    },
    ({ items, more, jobs }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      const active = items.filter((latch) => latch.status === "ACTIVE").length;
      setText(
        summary,
        `${plural(items.length, "latch", "latches")}, ${number(active)} active${more ? "; more are not shown" : ""}`,
      );
      rows.show(items.map((latch) => ({ ...latch, jobs: jobs.get(latch.id) ?? [] })));
      [...rows.node.querySelectorAll("tbody tr")].forEach((row, index) => {
        const left = row.querySelector(".time-left");
        if (left) countDown(left, endsAt(items[index].remaining_ms), null);
      });
    },
    LOOK_EVERY_MS,
  );
  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}

const isRange = (job) => Array.isArray(job);
/// A range has both of its ends.
const countOf = (job) => (isRange(job) ? job[1] - job[0] + 1 : 1);
const jobText = (job) => (isRange(job) ? [...new Set(job)].map(number).join(" to ") : job);

/// What is done first in order, and how much more there is.
function jobsOf({ jobs, done }) {
  const rest = done - jobs.reduce((sum, job) => sum + countOf(job), 0);
  return [
    el(
      "div",
      { class: "small" },
      jobs.map((job, index) => [
        index > 0 && (isRange(job) ? "; " : ", "),
        el("span", { class: "name", text: jobText(job) }),
      ]),
    ),
    rest > 0 && el("div", { class: "faint small", text: `and ${number(rest)} more` }),
  ];
}

/// What is done of the first latches, by their ids.
async function loadJobs(path, items, signal) {
  const detailed = items.filter((latch) => latch.done > 0).slice(0, MAX_DETAILED);
  const load = async ({ path: name, id }) => {
    const body = { path: name, id, page_size: MAX_JOBS };
    try {
      return [id, (await call("POST", [...path, "get"], { body, signal })).done];
    } catch (problem) {
      if (problem.code !== "PRIMITIVE_NOT_FOUND") throw problem;
      return [id, []];
    }
  };
  return new Map(await Promise.all(detailed.map(load)));
}
