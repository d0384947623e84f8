// Queues of semaphores and pools: who goes first, and with how much.

import { el } from "/console/dom.js";
import { number, ownerText, pathKey } from "/console/format.js";

/// So many holders, and so many of a queue, are named.
export const NAMED = 3;

export const named = (name, about) =>
  el(
    "div",
    { class: "small" },
    el("span", { class: "name", text: name }),
    el("span", { class: "faint", text: ` ${about}` }),
  );

export const placeText = (wait) => `${number(wait.reason.queue_position + 1)}. ${ownerText(wait)}`;

/// What a request wants, with its priority.
export const wantText = (wait, wanted) =>
  wanted + (wait.priority > 0 ? `, priority ${number(wait.priority)}` : "");

/// Those who wait for a thing and go first.
export const queueOf = ({ path }, waits) =>
  waits
    .filter((wait) => pathKey(wait.path) === pathKey(path))
    .sort((one, other) => one.reason.queue_position - other.reason.queue_position)
    .slice(0, NAMED);
