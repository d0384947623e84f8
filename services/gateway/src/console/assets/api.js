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
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      headers: said,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
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
  // A browser would resolve these two away; as a name in a path they cannot be sent from here.
  const segments = path.map((segment) =>
    segment === "." || segment === ".." ? segment.replaceAll(".", "%2E") : encodeURIComponent(segment),
  );
  return `/v1/${segments.join("/")}${asked && `?${asked}`}`;
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
