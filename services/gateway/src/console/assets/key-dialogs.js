// Making, rotating and revoking API keys.

import { auth } from "/console/auth.js";
import { call } from "/console/api.js";
import { ask, show } from "/console/dialog.js";
import { el } from "/console/dom.js";

export function create(done) {
  const description = el("input", { type: "text", id: "key-description", autocomplete: "off" });
  const boxes = auth.who.scopes.map((scope) =>
    el("input", { type: "checkbox", value: scope, checked: scope.startsWith("locks:") && scope !== "locks:force" }),
  );
  const names = el("input", {
    type: "text",
    id: "key-namespaces",
    autocomplete: "off",
    "aria-describedby": "key-namespaces-hint",
  });
  const ends = el("input", { type: "datetime-local", id: "key-ends" });
  ask({
    title: "New API key",
    text: [],
    confirm: "Create key",
    fields: [
      el("div", { class: "field" }, el("label", { for: "key-description", text: "Description" }), description),
      el(
        "fieldset",
        { class: "checks" },
        el("legend", { text: "Scopes" }),
        boxes.map((box) => el("label", {}, box, el("code", { text: box.value }))),
      ),
      el(
        "div",
        { class: "field" },
        el("label", { for: "key-namespaces", text: "Only for namespaces" }),
        names,
        el("span", {
          class: "hint",
          id: "key-namespaces-hint",
          text: "With commas between; empty for what your own key is for.",
        }),
      ),
      el("div", { class: "field" }, el("label", { for: "key-ends", text: "Ends" }), ends),
    ],
    act: async () => {
      const namespaces = names.value
        .split(",")
        .map((name) => name.trim())
        .filter(Boolean);
      const made = await call("POST", ["api-keys"], {
        body: {
          description: description.value,
          scopes: boxes.filter((box) => box.checked).map((box) => box.value),
          ...(namespaces.length && { namespaces }),
          ...(ends.value && { expires_at: new Date(ends.value).toISOString() }),
        },
      });
      done();
      queueMicrotask(() => reveal(made, "Give it to whoever will use it, now: it is not shown again."));
    },
  });
}

/// A second key like the first, so that nobody is interrupted: the first is revoked once it rests.
export function rotate(key, done) {
  ask({
    title: `Rotate the key ${key.key_id}?`,
    confirm: "Make its successor",
    text: "A second key with the same description, scopes, namespaces and end is made. Both are good until you revoke the first: do that when “Last used” shows that it rests.",
    act: async () => {
      const { description, scopes, namespaces, expires_at } = key;
      const made = await call("POST", ["api-keys"], {
        body: { description, scopes, ...(namespaces && { namespaces }), ...(expires_at && { expires_at }) },
      });
      done();
      queueMicrotask(() => reveal(made, `Give it to all who use ${key.key_id}. It is not shown again.`));
    },
  });
}

export function revoke(key, done) {
  const isOwn = key.key_id === auth.who.keyId;
  ask({
    title: `Revoke the key ${key.key_id}?`,
    danger: true,
    confirm: "Revoke key",
    id: "revoke",
    text: [
      key.description && `“${key.description}”`,
      "Calls with it are refused within a second, and its open streams and waits end. Locks that were taken with it stay until they are released or run out. It cannot be undone.",
      isOwn && el("p", { class: "notice wait", text: "You are signed in with this key: you will be signed out." }),
    ].filter(Boolean),
    act: async () => {
      await call("DELETE", ["api-keys", key.key_id]);
      if (isOwn) return auth.signOut("You were signed out: you revoked your own key.");
      done();
      return `The key ${key.key_id} was revoked.`;
    },
  });
}

/// The one time that a key is shown.
function reveal({ key_id, api_key }, text) {
  const copied = el("span", { role: "status", class: "faint small" });
  const copy = el(
    "button",
    {
      type: "button",
      on: {
        click: async () => {
          copied.textContent = await navigator.clipboard.writeText(api_key).then(
            () => "Copied.",
            () => "The browser does not allow it: mark it and copy.",
          );
        },
      },
    },
    "Copy",
  );
  const close = el("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "Done");
  const dialog = show(
    el(
      "div",
      { class: "stack" },
      el("h2", { id: "revealed", text: `The key ${key_id}` }),
      el("p", { text }),
      el("code", { class: "secret", data: { secret: "" }, text: api_key }),
      el("div", { class: "actions" }, copied, copy, close),
    ),
    "revealed",
  );
}
