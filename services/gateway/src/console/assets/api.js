// Calls of the REST API. A refused credential signs out, whichever call meets it.

import { Problem, auth, problemOf } from "/console/auth.js";

const AT_ONCE = 1000;

/// `path` is a list of segments: names go in as they are, whatever is in them.
export async function call(method, path, { query = {}, body, signal, headers = {} } = {}) {
  const response = await send(method, path, { query, body, signal, headers });
  return response.status === 204 ? null : response.json();
}

/// The same, with the answer as it comes: for streams.
export async function send(method, path, { query = {}, body, signal, headers = {} }, again = true) {
  await auth.fresh();
  const said = { ...headers, Authorization: `Bearer ${auth.bearer}` };
  if (body !== undefined) said["Content-Type"] = "application/json";
  const options = { method, headers: said, signal, body: body === undefined ? undefined : JSON.stringify(body) };
  const url = address(path, query);
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The service cannot be reached." });
  }
  if (response.status === 401 && again && (await auth.refused()))
    return send(method, path, { query, body, signal, headers }, false);
  if (response.ok) return response;
  const problem = await problemOf(response);
  suspended(problem);
  throw problem;
}

/// Nothing can be done with a key of a suspended account, not even look.
export function suspended(problem) {
  if (problem.status === 403 && problem.message === "the account is suspended") {
    auth.signOut("You were signed out: the account is suspended. Ask the operator of the service.");
  }
}

function address(path, query) {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((one) => one !== undefined && one !== null)
      .map((one) => [name, one]),
  );
  const asked = new URLSearchParams(pairs).toString();
  // A browser resolves these two away, in whatever way they are written, and would ask for something else.
  if (path.some((segment) => segment === "." || segment === "..")) {
    throw new Problem(400, { detail: "What is called “.” or “..” cannot be asked for from a browser" });
  }
  return `/v1/${path.map(encodeURIComponent).join("/")}${asked && `?${asked}`}`;
}

/// A list from its first page on, up to `max` items, and whether there are more.
export async function list(path, field, { query = {}, max = AT_ONCE, signal } = {}) {
  const items = [];
  let token = null;
  do {
    const page = await call("GET", path, {
      query: { ...query, page_size: Math.min(AT_ONCE, max - items.length), page_token: token ?? undefined },
      signal,
    });
    items.push(...page[field]);
    token = page.next_page_token;
  } while (token && items.length < max);
  return { items, more: Boolean(token) };
}
