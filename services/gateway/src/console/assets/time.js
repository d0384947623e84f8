// Time that is left, counted down in place.

import { duration } from "/console/format.js";
import { set, setText } from "/console/dom.js";

const EVERY_MS = 500;

/// When something ends on this page's own clock, which does not jump; null when it does not.
export const endsAt = (remainingMs) =>
  remainingMs === null || remainingMs === undefined ? null : performance.now() + remainingMs;

/// Lets an element count down to `ends` (see `endsAt`), of `total` ms. Its bar, if it has one, shrinks with it.
export function countDown(element, ends, total) {
  set(element, "data-ends", ends === null ? null : Math.round(ends));
  set(element, "data-total", total ? Math.round(total) : null);
  if (ends !== null) tick(element);
}

function tick(element) {
  const left = Math.max(0, Number(element.dataset.ends) - performance.now());
  setText(element.querySelector("[data-left]") ?? element, duration(left));
  const bar = element.querySelector("[data-bar]");
  const total = Number(element.dataset.total);
  if (bar && total > 0) bar.style.setProperty("width", `${Math.min(100, (left / total) * 100).toFixed(1)}%`);
  set(element, "data-late", left < 10_000 ? "yes" : null);
}

setInterval(() => document.querySelectorAll("[data-ends]").forEach(tick), EVERY_MS);
