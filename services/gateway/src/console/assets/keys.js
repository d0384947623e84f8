// API keys of the account.

import { auth } from "/console/auth.js";
import { call } from "/console/api.js";
import { el, table } from "/console/dom.js";
import { dateTime, since } from "/console/format.js";
import { create, revoke, rotate } from "/console/key-dialogs.js";
import { head, loading } from "/console/page.js";

const LOOK_EVERY_MS = 10_000;

export function open() {
  const isOver = (key) => key.expires_at !== null && new Date(key.expires_at) <= Date.now();
  const rows = table(
    "API keys",
    [
      {
        label: "Key",
        state: (key) => key.key_id,
        cell: (key) => [
          el("code", { class: "whole", text: `hf_${key.key_id}_…` }),
          " ",
          key.key_id === auth.who.keyId && el("span", { class: "chip good", text: "yours" }),
        ],
      },
      {
        label: "Description",
        state: (key) => key.description,
        cell: (key) => key.description && el("span", { class: "name", text: key.description }),
      },
      {
        label: "Scopes",
        state: (key) => key.scopes,
        cell: (key) =>
          el(
            "span",
            { class: "row" },
            key.scopes.map((scope) => el("span", { class: "chip", text: scope })),
          ),
      },
      {
        label: "Namespaces",
        state: (key) => key.namespaces,
        cell: (key) =>
          key.namespaces
            ? key.namespaces.map((name) => el("div", { class: "name", text: name }))
            : el("span", { class: "faint", text: "all" }),
      },
      {
        label: "Last used",
        state: (key) => [key.last_used_at, key.last_used_at && since(key.last_used_at)],
        cell: (key) =>
          key.last_used_at
            ? el("time", {
                datetime: key.last_used_at,
                title: dateTime(key.last_used_at),
                text: `${since(key.last_used_at)} ago`,
              })
            : el("span", { class: "faint", text: "never" }),
      },
      {
        label: "Ends",
        state: (key) => [key.expires_at, isOver(key)],
        cell: (key) =>
          key.expires_at
            ? [dateTime(key.expires_at), isOver(key) && [" ", el("span", { class: "chip bad", text: "over" })]].flat()
            : el("span", { class: "faint", text: "never" }),
      },
      {
        label: "",
        wide: true,
        state: (key) => key.key_id,
        cell: (key) =>
          el(
            "span",
            { class: "row buttons" },
            el(
              "button",
              {
                type: "button",
                class: "plain",
                "aria-label": `Rotate the key ${key.key_id} …`,
                on: { click: () => rotate(key, shown.again) },
              },
              "Rotate …",
            ),
            el(
              "button",
              {
                type: "button",
                class: "plain",
                "aria-label": `Revoke the key ${key.key_id} …`,
                on: { click: () => revoke(key, shown.again) },
              },
              "Revoke …",
            ),
          ),
      },
    ],
    [],
    (key) => key.key_id,
  );
  const shown = loading(
    (signal) => call("GET", ["api-keys"], { signal }),
    ({ api_keys }) => rows.show(api_keys),
    LOOK_EVERY_MS,
  );
  const make = el(
    "button",
    { type: "button", class: "primary", on: { click: () => create(shown.again) } },
    "New key …",
  );
  return {
    node: el(
      "div",
      {},
      head(
        "API keys",
        "A key is shown once, when it is made. Revoking one takes effect within a second, for calls under way too.",
        make,
      ),
      shown.problem,
      el("div", { class: "card table" }, rows.node),
    ),
    stop: shown.stop,
  };
}
