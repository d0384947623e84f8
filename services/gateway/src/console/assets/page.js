// What views have in common: a heading, a place for problems, and following what changes.

import { el, set } from "/console/dom.js";
import { said } from "/console/dialog.js";

const TOGETHER_MS = 50;

/// The heading of a view: its title, a line about it, and its tools.
export function head(title, lead, ...tools) {
  return el("div", { class: "head" }, el("h1", {}, title), tools, lead && el("p", { class: "lead", text: lead }));
}

/// What a view of a namespace is called.
export const titleOf = (label, route) => [`${label} `, el("span", { class: "name of", text: route.namespace })];

export const empty = (what, hint) => el("div", { class: "empty" }, el("strong", { text: what }), hint);

/// A bar that is full to a share from 0 to 1; `isHigh` says that there is little left.
export function barOf(share, isHigh = false) {
  const fill = el("i");
  fill.style.setProperty("width", `${Math.min(100, share * 100)}%`);
  const bar = el("span", { class: "bar", "aria-hidden": "true" }, fill);
  set(bar, "data-high", isHigh ? "yes" : null);
  return bar;
}

/// Calls `update` now and after changes, several of them together. Ends with `stop`.
export function follow(live, update) {
  let due = null;
  const changed = () => {
    due ??= setTimeout(() => {
      due = null;
      update();
    }, TOGETHER_MS);
  };
  live.addEventListener("change", changed);
  update();
  return () => {
    live.removeEventListener("change", changed);
    clearTimeout(due);
  };
}

/// Says why a namespace cannot be shown any more.
export function liveProblem(live, notice) {
  const { problem } = live;
  notice.hidden = !problem;
  if (problem) {
    notice.textContent =
      problem.code === "NAMESPACE_NOT_FOUND"
        ? "There is no namespace of this name any more: it was deleted, or never made."
        : said(problem);
  }
}

export const notice = () => el("p", { class: "notice bad", role: "alert", hidden: true });

/// Loads, shows, and does so again: every `everyMs` while somebody looks, or when `again` is called.
export function loading(load, show, everyMs = null) {
  const stopping = new AbortController();
  const problem = notice();
  const again = async () => {
    try {
      const loaded = await load(stopping.signal);
      if (stopping.signal.aborted) return;
      problem.hidden = true;
      show(loaded);
    } catch (error) {
      if (stopping.signal.aborted) return;
      problem.textContent = said(error);
      problem.hidden = false;
      if (!(error.status >= 0)) throw error;
    }
  };
  const timer = everyMs && setInterval(() => document.hidden || again(), everyMs);
  again();
  return {
    problem,
    again,
    stop: () => {
      stopping.abort();
      clearInterval(timer);
    },
  };
}
