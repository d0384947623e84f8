// The page for whoever is not signed in.

import { auth } from "/console/auth.js";
import { el } from "/console/dom.js";

export function signIn() {
  const message = el("p", {
    role: "alert",
    class: auth.reason ? "notice wait" : "notice bad",
    hidden: !auth.reason,
    text: auth.reason ?? "",
  });
  const key = el("input", {
    type: "password",
    id: "key",
    name: "key",
    autocomplete: "current-password",
    required: true,
    spellcheck: "false",
    autocapitalize: "off",
    "aria-describedby": "key-hint",
  });
  const button = el("button", { class: "primary", type: "submit", text: "Sign in" });
  const form = el(
    "form",
    { on: { submit } },
    message,
    el(
      "div",
      { class: "field" },
      el("label", { for: "key", text: "API key" }),
      key,
      el("span", { class: "hint", id: "key-hint", text: "Or a token, or the operator token." }),
    ),
    button,
  );

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    message.hidden = true;
    try {
      await auth.signIn(key.value.trim());
    } catch (problem) {
      message.className = "notice bad";
      message.textContent =
        problem.status === 401 ? `Not signed in: ${problem.message}.` : `Not signed in. ${problem.message}`;
      message.hidden = false;
      button.disabled = false;
      key.select();
      key.focus();
    }
  }

  queueMicrotask(() => key.focus());
  return el(
    "main",
    { class: "sign-in", id: "main", tabindex: "-1" },
    el(
      "div",
      { class: "card" },
      el(
        "div",
        { class: "brand" },
        el("img", { src: "/console/icon.svg", alt: "" }),
        el("h1", { text: "Holdfast console" }),
      ),
      form,
      el("p", {
        class: "small",
        text: "The key stays in the memory of this page. This tab keeps a token got for it, good for an hour at most.",
      }),
    ),
  );
}
