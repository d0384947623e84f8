// Nodes, shards, leaders, and how far replicas are behind, for the operator.

import { call } from "/console/api.js";
import { el, set, setContent, setText, sync, table } from "/console/dom.js";
import { duration, number, plural } from "/console/format.js";
import { head, loading } from "/console/page.js";

const LOOK_EVERY_MS = 2000;
/// A replica that is so many entries behind is not just about to hear of them.
const FAR = 100;

export function open() {
  const summary = el("p", { class: "lead", role: "status" });
  const heading = head("Cluster");
  heading.append(summary);
  const nodes = el("ul", { class: "nodes" });
  const right = (label, name) => ({ label, right: true, state: (row) => row[name], cell: (row) => number(row[name]) });
  const rows = table(
    "Shards",
    [
      {
        label: "Shard",
        state: (row) => [row.id, row.lower_bound],
        cell: (row) => [
          el("strong", { text: row.id }),
          el("div", { class: "faint small mono", text: `${row.lower_bound}–${row.upper_bound}` }),
        ],
      },
      {
        label: "Leader",
        state: (row) => row.leader,
        cell: (row) =>
          row.leader ? el("code", { text: row.leader }) : el("span", { class: "chip bad", text: "none" }),
      },
      right("Term", "term"),
      right("Holds", "holds"),
      right("Waiting", "waiting"),
      right("Sessions", "sessions"),
      {
        label: "Replicas",
        state: (row) => row.replicas.map((one) => [one.id, one.state, one.entries_behind]),
        cell: (row) => el("span", { class: "row" }, row.replicas.map(replica)),
      },
      { label: "Snapshot", state: (row) => minutes(row), cell: (row) => minutes(row) },
    ],
    [],
    (row) => row.id,
  );
  const shown = loading(
    (signal) => call("GET", ["cluster"], { signal }),
    (cluster) => {
      const ready = cluster.nodes.filter((node) => node.ready).length;
      const led = cluster.shards.filter((shard) => shard.leader).length;
      setText(
        summary,
        `${ready} of ${plural(cluster.nodes.length, "node")} ready · ${led} of ${plural(cluster.shards.length, "shard")} led · configuration ${cluster.config_version}`,
      );
      sync(
        nodes,
        cluster.nodes,
        (node) => node.id,
        () => el("li", { class: "card tile" }, el("div")),
        (item, node) => showNode(item, node, cluster.config_version),
      );
      rows.show(cluster.shards);
    },
    LOOK_EVERY_MS,
  );
  return {
    node: el("div", {}, heading, shown.problem, nodes, el("div", { class: "card table" }, rows.node)),
    stop: shown.stop,
  };
}

function showNode(item, node, version) {
  set(item, "data-ready", String(node.ready));
  setContent(item.firstElementChild, JSON.stringify([node, version]), () => [
    el(
      "div",
      { class: "owner" },
      el("strong", { text: node.id }),
      el(
        "span",
        { class: `chip ${node.ready ? "good" : "bad"}` },
        el("span", { class: "dot" }),
        node.ready ? "Ready" : "Not ready",
      ),
    ),
    el("div", { class: "faint small mono", text: node.address }),
    el("div", { class: "small", text: `leads ${plural(node.leads, "shard")}` }),
    node.config_version !== version &&
      el("div", {
        class: "small soft",
        text: node.config_version === null ? "does not answer" : `has configuration ${node.config_version}`,
      }),
    node.not_ready_reason && el("p", { class: "small soft name", text: node.not_ready_reason }),
  ]);
}

function replica({ node_id, state, entries_behind }) {
  const kind =
    state === null
      ? "bad"
      : state === "Leader"
        ? "good"
        : entries_behind === null || entries_behind > FAR
          ? "wait"
          : "";
  const about =
    state === null
      ? "does not answer"
      : state === "Leader"
        ? "leads"
        : entries_behind === null
          ? state.toLowerCase()
          : entries_behind === 0
            ? "up to date"
            : `${number(entries_behind)} behind`;
  return el("span", { class: `chip ${kind}`, text: `${node_id} ${about}` });
}

function minutes({ replicas }) {
  const ages = replicas.map((one) => one.snapshot_age_ms).filter((age) => age !== null);
  return ages.length ? `${duration(Math.floor(Math.max(...ages) / 60_000) * 60_000)} ago` : "?";
}
