// Semaphores of a namespace: how much of each is in use, who has most of it, and who waits for it; asking for permits
// back, and setting how many there are.

import { auth } from "/console/auth.js";
import { call, list } from "/console/api.js";
import { askForRelease, askedText } from "/console/asking.js";
import { ask } from "/console/dialog.js";
import { el, setText, table } from "/console/dom.js";
import { number, ownerText, pathKey, pathText, plural } from "/console/format.js";
import { barOf, empty, head, loading, titleOf } from "/console/page.js";
import { NAMED, named, placeText, queueOf, wantText } from "/console/queue.js";

const LOOK_EVERY_MS = 2000;
const MAX_SHOWN = 200;
const MAX_WAITS = 100;
/// Of so many semaphores that are in use the holders are loaded, and so many holders of each, the earliest.
const MAX_DETAILED = 10;
const MAX_HOLDERS = 100;
const MAX_PERMITS = 1_000_000_000;

export function open({ route, live }) {
  const summary = el("p", { class: "lead" });
  const heading = head(titleOf("Semaphores", route));
  heading.append(summary);
  const isChangeable = auth.may("locks:write") || auth.may("locks:force");
  const rows = table(
    "Semaphores",
    [
      {
        label: "Semaphore",
        state: (one) => [one.configured, one.description],
        cell: (one) => [
          el("strong", { class: "name", text: pathText(one.path) }),
          el("div", { class: "faint small", text: one.configured ? one.description : "gone with its last hold" }),
        ],
      },
      {
        label: "In use",
        right: true,
        state: (one) => [one.in_use, one.permits],
        cell: (one) =>
          el(
            "span",
            { class: "meter" },
            `${number(one.in_use)} of ${number(one.permits)}`,
            barOf(one.permits === 0 ? 1 : one.in_use / one.permits, one.available === 0),
          ),
      },
      { label: "Free", right: true, state: (one) => one.available, cell: (one) => number(one.available) },
      {
        label: "Holds",
        state: (one) => [one.holders_total, one.heaviest.map(holdState)],
        cell: (one) => [
          number(one.holders_total),
          one.heaviest.map((holder) => [
            named(ownerText(holder), holdText(holder)),
            el("div", { class: "asked small", text: askedText(holder.release_requested) }),
          ]),
          one.heaviest.length > 0 &&
            one.holders_total > MAX_HOLDERS &&
            el("div", { class: "faint small", text: `of the ${number(MAX_HOLDERS)} earliest` }),
        ],
      },
      {
        label: "Queue",
        state: (one) => [one.waiting, one.queue.map((wait) => [placeText(wait), wait.weight, wait.priority])],
        cell: (one) => [
          one.waiting > 0 && el("span", { class: "chip wait", text: `${number(one.waiting)} waiting` }),
          one.queue.map((wait) => named(placeText(wait), wantText(wait, plural(wait.weight, "permit")))),
        ],
      },
      isChangeable && {
        label: "",
        wide: true,
        state: (one) => [one.holders_total === 0, one.permits, one.configured, one.description, one.metadata],
        cell: (one) => buttons(one, { namespace: live.namespace, done: () => shown.again() }),
      },
    ].filter(Boolean),
    [],
    (one) => pathKey(one.path),
  );
  const nothing = empty("No semaphores", "They appear here once somebody configures one or acquires permits.");
  const card = el("div", { class: "card table", hidden: true }, rows.node, nothing);
  const shown = loading(
    async (signal) => {
      const of = (path) => ["namespaces", live.namespace, path];
      const query = { kinds: "semaphores", page_size: MAX_WAITS };
      const [{ items, more }, { waits }] = await Promise.all([
        list(of("semaphores"), "semaphores", { max: MAX_SHOWN, signal }),
        call("GET", of("waits"), { query, signal }),
      ]);
      const holders = await loadHolders(of("semaphores"), items, signal);
      return { items, more, waits, holders };
    },
    ({ items, more, waits, holders }) => {
      card.hidden = false;
      nothing.hidden = items.length > 0;
      rows.node.hidden = items.length === 0;
      setText(summary, `${plural(items.length, "semaphore")}${more ? "; more are not shown" : ""}`);
      rows.show(
        items.map((one) => ({
          ...one,
          queue: queueOf(one, waits),
          heaviest: holders.get(pathKey(one.path)) ?? [],
        })),
      );
    },
    LOOK_EVERY_MS,
  );
  return { node: el("div", {}, heading, shown.problem, card), stop: shown.stop };
}

const holdText = (holder) => plural(holder.weight, "permit");
const holdState = (holder) => [ownerText(holder), holdText(holder), askedText(holder.release_requested)];

/// What the key of the user may do with a semaphore.
function buttons(one, { namespace, done }) {
  const { path } = one;
  const button = (label, part, act, disabled = false) =>
    el(
      "button",
      {
        type: "button",
        class: "plain",
        data: { part },
        disabled,
        "aria-label": `${label} …: ${pathText(path)}`,
        on: { click: act },
      },
      `${label} …`,
    );
  return el(
    "span",
    { class: "row buttons" },
    auth.may("locks:force") && button("Set permits", "permits", () => setPermits(one, { namespace, done })),
    auth.may("locks:write") &&
      button("Ask back", "ask", () => askForRelease("semaphore", { namespace, path, done }), one.holders_total === 0),
  );
}

/// Configures a semaphore with another number of permits, which the service writes into the audit log of the account.
function setPermits(one, { namespace, done }) {
  const { path, description, metadata } = one;
  const permits = el("input", {
    type: "number",
    id: "permits",
    min: "0",
    max: String(MAX_PERMITS),
    step: "1",
    required: true,
    autocomplete: "off",
    value: String(one.permits),
  });
  ask({
    title: `Set the permits of “${pathText(path)}”?`,
    text: [
      "Nobody loses a permit: with fewer than are in use, nobody gets any until enough are back. With none, everybody waits; otherwise requests for more than there are get refused.",
      !one.configured && "It is kept from then on, whether or not somebody holds permits of it.",
      `It is written into the audit log, with your key ${auth.who.keyId}.`,
    ].filter(Boolean),
    confirm: "Set permits",
    id: "permits",
    fields: [el("div", { class: "field" }, el("label", { for: "permits", text: "Permits" }), permits)],
    act: async () => {
      const body = { path, permits: Number(permits.value), description, metadata };
      const { semaphore } = await call("POST", ["namespaces", namespace, "semaphores", "configure"], { body });
      done();
      return `“${pathText(path)}” has ${plural(semaphore.permits, "permit")}.`;
    },
  });
}

/// Those with most permits of the first semaphores that are in use, by path.
async function loadHolders(path, items, signal) {
  const used = items.filter((one) => one.holders_total > 0).slice(0, MAX_DETAILED);
  const load = async (one) => {
    const body = { path: one.path, page_size: MAX_HOLDERS };
    try {
      const { holders } = await call("POST", [...path, "get"], { body, signal });
      return [pathKey(one.path), holders.sort((a, b) => b.weight - a.weight).slice(0, NAMED)];
    } catch (problem) {
      if (problem.code !== "PRIMITIVE_NOT_FOUND") throw problem;
      return [pathKey(one.path), []];
    }
  };
  return new Map(await Promise.all(used.map(load)));
}
