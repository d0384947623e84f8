// The drawing of who waits for whom. Everybody stands to the right of those they wait for.

import { svg } from "/console/dom.js";
import { ownerKey, ownerText, pathText, plural } from "/console/format.js";

const [WIDTH, HEIGHT, ACROSS, DOWN, EDGE] = [208, 46, 72, 16, 16];
const LETTERS = 26;

/// Draws the waits, unless what is drawn already is the same.
export function draw(place, waits) {
  const { nodes, edges } = graphOf(waits);
  const state = JSON.stringify([[...nodes.values()].map(({ key, holds, awaits }) => [key, holds, awaits]), edges]);
  if (place.dataset.drawn === state) return;
  place.dataset.drawn = state;
  if (nodes.size === 0) return place.replaceChildren();
  const columns = arrange(nodes, edges);
  const width = EDGE * 2 + columns.length * WIDTH + (columns.length - 1) * ACROSS;
  const tallest = Math.max(...columns.map((column) => column.length), 1);
  const height = EDGE * 2 + tallest * HEIGHT + (tallest - 1) * DOWN;
  columns.forEach((column, at) =>
    column.forEach((node, index) => {
      const spare = ((tallest - column.length) * (HEIGHT + DOWN)) / 2;
      Object.assign(node, { x: EDGE + at * (WIDTH + ACROSS), y: EDGE + spare + index * (HEIGHT + DOWN) });
    }),
  );
  const label = `${plural(waits.length, "request")} waiting, ${plural(nodes.size, "owner")} concerned. The table below says the same in words.`;
  place.replaceChildren(
    svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      svg("defs", {}, arrow("tip"), arrow("tip-faint")),
      edges.map((edge) => line(nodes.get(edge.from), nodes.get(edge.to), edge.waiting)),
      [...nodes.values()].map(box),
    ),
  );
}

function graphOf(waits) {
  const nodes = new Map();
  const nodeOf = (owner) => {
    const key = ownerKey(owner);
    if (!nodes.has(key)) nodes.set(key, { key, name: ownerText(owner), holds: [], awaits: [] });
    return nodes.get(key);
  };
  const edges = new Map();
  for (const wait of waits) {
    const waiter = nodeOf(wait);
    waiter.awaits.push(...wait.resources.map((resource) => pathText(resource.path)));
    for (const blocker of wait.reason.blockers) {
      const other = nodeOf(blocker);
      const path = pathText(blocker.path);
      if (!blocker.waiting && !other.holds.includes(path)) other.holds.push(path);
      edges.set(`${waiter.key}>${other.key}`, { from: waiter.key, to: other.key, waiting: blocker.waiting });
    }
  }
  return { nodes, edges: [...edges.values()] };
}

/// Columns from the left: first those who wait for nobody, then each one column further than the last they wait for.
function arrange(nodes, edges) {
  const columns = [];
  const behind = Map.groupBy
    ? Map.groupBy(edges, (edge) => edge.from)
    : edges.reduce((map, edge) => map.set(edge.from, [...(map.get(edge.from) ?? []), edge]), new Map());
  const ranks = new Map();
  const rank = (key, seen) => {
    if (ranks.has(key)) return ranks.get(key);
    if (seen.has(key)) return 0;
    const next = new Set(seen).add(key);
    const found = Math.max(-1, ...(behind.get(key) ?? []).map((edge) => rank(edge.to, next))) + 1;
    ranks.set(key, found);
    return found;
  };
  for (const node of nodes.values()) (columns[rank(node.key, new Set())] ??= []).push(node);
  return columns;
}

const arrow = (id) =>
  svg(
    "marker",
    { id, viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" },
    svg("path", { d: "M0 0 8 4 0 8z", class: id }),
  );

function line(from, to, waiting) {
  const [startX, startY, endX, endY] = [from.x, from.y + HEIGHT / 2, to.x + WIDTH + 2, to.y + HEIGHT / 2];
  const bend = Math.max(24, (startX - endX) / 2);
  return svg("path", {
    class: waiting ? "edge behind" : "edge",
    d: `M${startX} ${startY}C${startX - bend} ${startY} ${endX + bend} ${endY} ${endX} ${endY}`,
    "marker-end": `url(#${waiting ? "tip-faint" : "tip"})`,
  });
}

function box({ x, y, name, holds, awaits }) {
  const has = holds.length ? `holds ${holds.join(", ")}` : "";
  const about = awaits.length ? `waits for ${awaits.join(", ")}` : has;
  return svg(
    "g",
    { class: awaits.length ? "owner waits" : "owner holds" },
    svg("title", { text: `${name}: ${awaits.length && has ? `${has}; ${about}` : about}` }),
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 7 }),
    svg("text", { x: x + 11, y: y + 19, class: "who-is", text: short(name) }),
    svg("text", { x: x + 11, y: y + 36, class: "what", text: short(about, LETTERS + 5) }),
  );
}

const short = (text, letters = LETTERS) => {
  const all = [...text];
  return all.length > letters ? `${all.slice(0, letters - 1).join("")}…` : text;
};
