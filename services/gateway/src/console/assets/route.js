// Addresses within the page: `#/ns/<namespace>/<view>/<segment>…`, or `#/<view>`. Names only, never a credential.

const OF_NAMESPACE = ["locks", "waits", "sessions", "semaphores", "pools", "latches", "barriers", "events"];

/// Where an address leads. What leads nowhere leads to the first page of whoever is signed in.
export function read(hash, auth) {
  const [first, ...rest] = hash.replace(/^#\/?/, "").split("/").map(decode);
  const first_view = auth.who.operator ? "cluster" : "namespaces";
  if (!auth.who.operator && first === "ns" && rest[0]) {
    const view = OF_NAMESPACE.includes(rest[1]) ? rest[1] : "locks";
    return {
      view,
      namespace: rest[0],
      prefix: view === "locks" ? rest.slice(2).filter((segment) => segment !== "") : [],
    };
  }
  const known = auth.who.operator ? ["cluster", "accounts", "operations"] : ["namespaces", "keys", "usage", "audit"];
  return { view: known.includes(first) ? first : first_view, namespace: null, prefix: [] };
}

export function href(view, namespace, prefix = []) {
  const segments = namespace === null || namespace === undefined ? [view] : ["ns", namespace, view, ...prefix];
  return `#/${segments.map(encodeURIComponent).join("/")}`;
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
