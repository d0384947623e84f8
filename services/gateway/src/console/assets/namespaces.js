// Namespaces of the account, with what is in them.

import { auth } from "/console/auth.js";
import { call, list as listOf } from "/console/api.js";
import { ask } from "/console/dialog.js";
import { el, table } from "/console/dom.js";
import { dateTime, number } from "/console/format.js";
import { badge, progressChip } from "/console/lock-table.js";
import { empty, head, loading } from "/console/page.js";
import { href } from "/console/route.js";

const LOOK_EVERY_MS = 5000;
/// Of so many namespaces the lock table is looked at, if it is in memory.
const MAX_TABLES = 20;

export function open() {
  const admin = auth.may("namespaces:admin");
  const figure = (label, name) => ({
    label,
    right: true,
    state: (row) => row.figures?.[name],
    cell: (row) => number(row.figures?.[name]),
  });
  const columns = [
    {
      label: "Namespace",
      state: (row) => [row.name, row.durability, row.table],
      cell: (row) => [
        el("a", { class: "name strong", href: href("locks", row.name), text: row.name }),
        row.durability === "SESSION" && el("span", { class: "row" }, badge(row), progressChip(row)),
      ],
    },
    {
      label: "Description",
      state: (row) => row.description,
      cell: (row) => row.description && el("span", { class: "name soft", text: row.description }),
    },
    figure("Holds", "holds"),
    figure("Waiting", "waiting"),
    figure("Sessions", "sessions"),
    { label: "Created", state: (row) => row.created_at, cell: (row) => dateTime(row.created_at) },
  ];
  if (admin)
    columns.push({
      label: "",
      wide: true,
      state: (row) => row.id,
      cell: (row) =>
        el(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": `Delete the namespace ${row.name} …`,
            on: { click: () => remove(row, shown.again) },
          },
          "Delete …",
        ),
    });
  const rows = table("Namespaces", columns, [], (row) => row.id);
  const nothing = el(
    "div",
    { hidden: true },
    empty(
      "No namespaces yet",
      admin ? "Make the first one." : "Somebody with a key with namespaces:admin can make one.",
    ),
  );
  const shown = loading(
    async (signal) => {
      const [{ items }, usage] = await Promise.all([
        listOf(["namespaces"], "namespaces", { signal }),
        call("GET", ["usage"], { signal }).catch(() => null),
      ]);
      const figures = new Map(usage?.namespaces.map((one) => [one.id, one]));
      const tables = await tablesOf(items, signal);
      return items.map((one) => ({ ...one, figures: figures.get(one.id), table: tables.get(one.id) }));
    },
    (items) => {
      rows.show(items);
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
    },
    LOOK_EVERY_MS,
  );
  const make =
    admin &&
    el("button", { type: "button", class: "primary", on: { click: () => create(shown.again) } }, "New namespace …");
  return {
    node: el(
      "div",
      {},
      head("Namespaces", "Each has locks, sessions and events of its own.", make),
      shown.problem,
      el("div", { class: "card table" }, rows.node, nothing),
    ),
    stop: shown.stop,
  };
}

/// The lock tables of namespaces that have them in memory, by the ids of these.
async function tablesOf(namespaces, signal) {
  const soft = namespaces.filter((one) => one.durability === "SESSION").slice(0, MAX_TABLES);
  const look = (one) => call("GET", ["namespaces", one.name], { signal }).catch(() => null);
  const found = await Promise.all(soft.map(look));
  return new Map(found.filter(Boolean).map((one) => [one.id, one.table]));
}

function create(done) {
  const name = el("input", { type: "text", id: "new-name", required: true, maxlength: "128", autocomplete: "off" });
  const description = el("input", { type: "text", id: "new-description", autocomplete: "off" });
  const durability = el(
    "select",
    { id: "new-durability" },
    el("option", { value: "FULL", text: "in the log (FULL)" }),
    el("option", { value: "SESSION", text: "in the memory of a leader (SESSION)" }),
  );
  ask({
    title: "New namespace",
    text: [],
    confirm: "Create",
    fields: [
      el("div", { class: "field" }, el("label", { for: "new-name", text: "Name" }), name),
      el("div", { class: "field" }, el("label", { for: "new-description", text: "Description" }), description),
      el(
        "div",
        { class: "field" },
        el("label", { for: "new-durability", text: "Its locks are kept" }),
        durability,
        el("span", { class: "hint", text: "For good. In memory only sessions on connections lock, and faster." }),
      ),
    ],
    act: async () => {
      await call("POST", ["namespaces"], {
        body: { name: name.value, description: description.value, durability: durability.value },
      });
      done();
      return `The namespace “${name.value}” is there.`;
    },
  });
}

function remove(row, done) {
  const typed = el("input", { type: "text", id: "typed-name", autocomplete: "off" });
  ask({
    title: `Delete the namespace “${row.name}”?`,
    danger: true,
    confirm: "Delete namespace",
    text: "All its locks are freed, its sessions end, whoever waits is refused, and its events are gone. One of the same name that is made later starts empty.",
    fields: [el("div", { class: "field" }, el("label", { for: "typed-name", text: "Type its name to go on" }), typed)],
    act: async () => {
      if (typed.value !== row.name) throw new Error("That is not its name.");
      await call("DELETE", ["namespaces", row.name], { query: { id: row.id } });
      done();
      return `The namespace “${row.name}” was deleted.`;
    },
  });
}
