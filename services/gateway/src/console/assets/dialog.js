// Questions before something is done, and what came of it.

import { el } from "/console/dom.js";

const SHOWN_MS = 8000;
let toasts = null;

/// Asks; `act` is done when the answer is yes. It stays open, and says why, when that fails. The first thing in focus is
/// the way out.
export function ask({ title, text, confirm, danger = false, fields = [], act, id }) {
  const problem = el("p", { class: "notice bad", role: "alert", hidden: true });
  const no = el("button", { type: "button", text: "Cancel", on: { click: () => dialog.close() } });
  const yes = el("button", {
    type: "submit",
    class: danger ? "primary danger" : "primary",
    text: confirm,
    data: { confirm: id ?? "" },
  });
  const form = el(
    "form",
    { on: { submit } },
    el("h2", { id: "asked", text: title }),
    [].concat(text).map((part) => (typeof part === "string" ? el("p", { text: part }) : part)),
    fields,
    problem,
    el("div", { class: "actions" }, no, yes),
  );
  const dialog = show(form, "asked");
  if (!fields.length) no.focus();

  async function submit(event) {
    event.preventDefault();
    problem.hidden = true;
    yes.disabled = true;
    try {
      const after = await act();
      dialog.close();
      if (typeof after === "string") toast(after);
    } catch (error) {
      problem.textContent = said(error);
      problem.hidden = false;
      yes.disabled = false;
    }
  }
  return dialog;
}

/// Shows something in a dialog until it is closed. Focus goes back to where it was.
export function show(content, labelledBy) {
  const dialog = el("dialog", { "aria-labelledby": labelledBy }, content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/// What a problem says, and whether anything was done.
export function said(problem) {
  if (problem.code === "DEADLINE_EXCEEDED")
    return `${problem.message}. It may have been done: look before you do it again.`;
  if (problem.code === "PERMISSION_DENIED") return `Not allowed: ${problem.message}.`;
  return problem.message;
}

/// Something that was done, said for a moment.
export function toast(text, kind = "good") {
  toasts?.isConnected || document.body.append((toasts = el("div", { class: "toasts", role: "status" })));
  const note = el("p", { class: `notice ${kind}`, text });
  toasts.append(note);
  setTimeout(() => note.remove(), SHOWN_MS);
}

/// Closes everything that is open: whoever it was for is gone.
export function closeAll() {
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  toasts?.replaceChildren();
}
