// Locks as a tree of rows: what is held or awaited, and what lies above it.

import { pathKey } from "/console/format.js";

/// Rows that are put on the page; more of them nobody reads.
export const MAX_ROWS = 500;

/// The rows of a tree, in order: `{key, path, depth, lock, waits, awaits, below, isOpen, hasChildren}`. `below` counts the locks
/// that are held under a path. Closed branches are left out, and so is what the filter does not find.
export function rowsOf({ locks, waits, awaits, prefix }, closed, filter) {
  const root = { path: prefix, children: new Map() };
  const nodeAt = (path) => {
    let at = root;
    for (let depth = prefix.length; depth < path.length; depth++) {
      const segment = path[depth];
      if (!at.children.has(segment)) at.children.set(segment, { path: path.slice(0, depth + 1), children: new Map() });
      at = at.children.get(segment);
    }
    return at;
  };
  const isUnder = (path) => prefix.every((segment, index) => path[index] === segment);
  for (const lock of locks.values()) nodeAt(lock.path).lock = lock;
  for (const wait of waits) {
    for (const { path } of wait.resources.filter((resource) => isUnder(resource.path)))
      (nodeAt(path).waits ??= []).push(wait);
  }
  for (const one of awaits.filter(({ path }) => isUnder(path))) (nodeAt(one.path).awaits ??= []).push(one);
  if (filter) prune(root, filter.toLowerCase());
  const rows = [];
  if (root.lock || root.waits || root.awaits || prefix.length) walk(root, 0, closed, rows);
  else for (const child of sorted(root)) walk(child, 0, closed, rows);
  return rows;
}

function walk(node, depth, closed, rows) {
  const key = pathKey(node.path);
  const isOpen = !closed.has(key);
  const hasChildren = node.children.size > 0;
  rows.push({
    key,
    path: node.path,
    depth,
    lock: node.lock ?? null,
    waits: node.waits ?? [],
    awaits: node.awaits ?? [],
    below: held(node),
    isOpen,
    hasChildren,
  });
  if (isOpen) for (const child of sorted(node)) walk(child, depth + 1, closed, rows);
}

const sorted = (node) => [...node.children.values()].sort((one, other) => compare(one.path.at(-1), other.path.at(-1)));
const compare = (one, other) => one.localeCompare(other, undefined, { numeric: true }) || (one < other ? -1 : 1);

function held(node) {
  let count = 0;
  for (const child of node.children.values()) count += (child.lock ? 1 : 0) + held(child);
  return count;
}

/// Keeps what has the words in its path or among its owners, and the way there.
function prune(node, words) {
  if (mentions(node, words)) return true;
  for (const [segment, child] of node.children) if (!prune(child, words)) node.children.delete(segment);
  if (node.children.size === 0) return false;
  return true;
}

function mentions(node, words) {
  const has = (text) => text?.toLowerCase().includes(words);
  const names = (owner) => has(owner.process_id) || has(owner.holder) || has(owner.session_id);
  return has(node.path.at(-1)) || node.lock?.holders.some(names) || [node.waits, node.awaits].some((some) => some?.some(names));
}
