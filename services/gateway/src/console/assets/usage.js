// What the account uses, and what it may.

import { call } from "/console/api.js";
import { el, setContent, setText, sync, table } from "/console/dom.js";
import { duration, number } from "/console/format.js";
import { barOf, head, loading } from "/console/page.js";
import { href } from "/console/route.js";

const LOOK_EVERY_MS = 5000;
const WORDS = { max: "Most", min: "Least", ms: "" };

export function open() {
  const tiles = el("div", { class: "tiles" });
  const right = (label, name) => ({ label, right: true, state: (row) => row[name], cell: (row) => number(row[name]) });
  const rows = table(
    "Usage of each namespace",
    [
      {
        label: "Namespace",
        state: (row) => row.name,
        cell: (row) => el("a", { class: "name strong", href: href("locks", row.name), text: row.name }),
      },
      {
        label: "Holds",
        right: true,
        state: (row) => [row.holds, row.share],
        cell: (row) => el("span", { class: "meter" }, number(row.holds), barOf(row.share, row.share > 0.8)),
      },
      right("Waiting", "waiting"),
      right("Sessions", "sessions"),
      right("Most holds", "peak_holds"),
      right("Most waiting", "peak_waiting"),
      right("Operations", "operations"),
      right("Grants", "grants"),
      right("Waits", "waits"),
    ],
    [],
    (row) => row.id,
  );
  const uses = table(
    "Each limit and its use",
    [
      {
        label: "Limit",
        state: (row) => row.limit,
        cell: (row) => el("span", { class: "strong", text: words(row.limit) }),
      },
      {
        label: "Used",
        right: true,
        state: (row) => [row.used, row.max],
        cell: (row) => (row.used === undefined ? "" : used(row.used, row.max ? row.used / row.max : 0)),
      },
      { label: "Allowed", right: true, state: (row) => row.max, cell: (row) => shownAs(row.limit, row.max) },
      { label: "Each", state: (row) => row.each, cell: (row) => row.each },
      {
        label: "Counted",
        state: (row) => row.of_this_gateway,
        cell: (row) => (row.used === undefined ? "" : row.of_this_gateway ? "at this gateway" : "in the service"),
      },
    ],
    [],
    (row) => row.limit,
  );
  const limits = el("dl", { class: "limits" });
  const shown = loading(
    (signal) => call("GET", ["usage"], { signal }),
    (usage) => {
      const { total, limits: allowed, namespaces } = usage;
      const facts = [
        ["Holds", total.holds],
        ["Waiting", total.waiting],
        ["Sessions", total.sessions],
        ["Grants", total.grants],
        ["Operations", total.operations],
        ["Namespaces", namespaces.length, usage.max_number_of_namespaces],
      ];
      sync(
        tiles,
        facts,
        ([label]) => label,
        ([label]) =>
          el(
            "div",
            { class: "card tile" },
            el("span", { class: "faint small", text: label }),
            el("strong", { class: "number" }),
          ),
        (tile, [, value, max]) =>
          setText(tile.lastElementChild, max ? `${number(value)} of ${number(max)}` : number(value)),
      );
      rows.show(namespaces.map((one) => ({ ...one, share: one.holds / allowed.max_holds_per_namespace })));
      uses.show(usage.limit_usage);
      setContent(limits, JSON.stringify(allowed), () =>
        Object.entries(allowed).map(([name, value]) =>
          el("div", {}, el("dt", { text: words(name) }), el("dd", { class: "number", text: shownAs(name, value) })),
        ),
      );
    },
    LOOK_EVERY_MS,
  );
  return {
    node: el(
      "div",
      {},
      head("Usage", "Reads and keep-alives are not counted. The operator changes limits."),
      shown.problem,
      tiles,
      el("div", { class: "card table" }, rows.node),
      el("div", { class: "card table" }, uses.node),
      el("section", { class: "card padded" }, el("h2", { text: "Limits" }), limits),
    ),
    stop: shown.stop,
  };
}

const used = (value, share) => el("span", { class: "meter" }, number(value), barOf(share, share > 0.8));
const words = (name) => {
  const [first, ...rest] = name.split("_").filter((word) => word !== "ms");
  return [WORDS[first] ?? first, ...rest].join(" ");
};
const shownAs = (name, value) =>
  name.endsWith("_ms") ? (value < 1000 ? `${value} ms` : duration(value)) : value === 0 ? "no limit" : number(value);
