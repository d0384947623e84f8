// Latches of a namespace: what is done of each, how many wait for it, and how long it has for the rest.

import { call, list } from "/console/api.js";
import { el, setText, table } from "/console/dom.js";
import { dateTime, number, pathText, plural, timeOfDay } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { countDown, endsAt } from "/console/time.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
/// Of so many latches of which something is done it is loaded what, and of each as many ids or ranges as an answer can
/// have: the latest can only be told from all.
const MAX_DETAILED = 10;
const MAX_LOADED = 1000;
/// So many of them are shown, the first in order, and so many of the latest.
const MAX_JOBS = 12;
const MAX_LATEST = 3;
const NOTHING_DONE = { count: 0, jobs: [], isWhole: true, latest: null, since: null };
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
        state: ({ known, done, status }) => [known.count, known.latest?.at, known.since, done, status],
        cell: (latch) => latch.known.jobs.length > 0 && [jobsOf(latch), latestOf(latch)],
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
  let known = new Map();
  const shown = loading(
    async (signal) => {
      const path = ["namespaces", live.namespace, "latches"];
      const { items, more } = await list(path, "latches", { max: MAX_SHOWN, signal });
      return { items, more, loaded: await loadDone(path, items, known, signal) };
    },
    ({ items, more, loaded }) => {
      known = loaded;
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      const active = items.filter((latch) => latch.status === "ACTIVE").length;
      setText(
        summary,
        `${plural(items.length, "latch", "latches")}, ${number(active)} active${more ? "; more are not shown" : ""}`,
      );
      rows.show(items.map((latch) => ({ ...latch, known: known.get(latch.id) ?? NOTHING_DONE })));
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

const countOfAll = (jobs) => jobs.reduce((sum, job) => sum + countOf(job), 0);

/// The first of these jobs, and how many more there are.
function listOf(jobs, max, count, kind) {
  const shown = jobs.slice(0, max);
  const rest = count - countOfAll(shown);
  return [
    el(
      "div",
      { class: kind },
      shown.map((job, index) => [
        index > 0 && (isRange(job) ? "; " : ", "),
        el("span", { class: "name", text: jobText(job) }),
      ]),
    ),
    rest > 0 && el("div", { class: "faint small", text: `and ${number(rest)} more` }),
  ];
}

/// What is done, first in order.
const jobsOf = ({ known, done }) => listOf(known.jobs, MAX_JOBS, done, "small");

/// What was done last, as far as this page has seen it.
function latestOf({ known, status }) {
  const { latest, isWhole, since } = known;
  const about = (text) => el("div", { class: "faint small", text });
  if (latest) {
    return [
      about(`the latest, seen at ${timeOfDay(latest.at)}:`),
      listOf(latest.jobs, MAX_LATEST, countOfAll(latest.jobs), "small latest"),
    ];
  }
  if (!isWhole) return about("too much is done to tell the latest");
  return status === "ACTIVE" && about(`nothing was done since ${timeOfDay(since)}`);
}

/// What is done of the first latches, by their ids. The service does not know when a job was done, so the latest are
/// those that were missing when this page looked before.
async function loadDone(path, items, before, signal) {
  const load = async (latch) => {
    const known = before.get(latch.id);
    // What is done stays done, so as many are the same.
    if (known && known.count >= latch.done) return known;
    const body = { path: latch.path, id: latch.id, page_size: MAX_LOADED };
    try {
      const answer = await call("POST", [...path, "get"], { body, signal });
      const [count, jobs, isWhole] = [answer.latch.done, answer.done, answer.next_page_token === null];
      if (known && known.count >= count) return known;
      // Whatever is done from now on will be noticed.
      const since = Date.now();
      const latest = isWhole && known?.isWhole ? { jobs: added(jobs, known.jobs), at: since } : null;
      return { count, jobs, isWhole, latest, since };
    } catch (problem) {
      if (problem.code !== "PRIMITIVE_NOT_FOUND") throw problem;
      return NOTHING_DONE;
    }
  };
  const begun = items.filter((latch) => latch.done > 0).slice(0, MAX_DETAILED);
  const loaded = await Promise.all(begun.map(async (latch) => [latch.id, await load(latch)]));
  const others = items.filter((latch) => latch.done === 0).map((latch) => [latch.id, NOTHING_DONE]);
  return new Map([...others, ...loaded]);
}

/// The jobs that were not among those before. Both are in order, and of the same kind.
function added(jobs, before) {
  if (jobs.some(isRange)) return jobs.flatMap((range) => without(range, before));
  const had = new Set(before);
  return jobs.filter((job) => !had.has(job));
}

/// The parts of a range that are in none of these.
function without([from, to], ranges) {
  const parts = [];
  for (const [first, last] of ranges) {
    if (last < from || first > to) continue;
    if (first > from) parts.push([from, first - 1]);
    from = last + 1;
  }
  if (from <= to) parts.push([from, to]);
  return parts;
}
