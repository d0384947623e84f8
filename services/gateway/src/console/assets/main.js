// The frame around the views: who is signed in, where one is, and what is shown there.

import { auth } from "/console/auth.js";
import { closeAll } from "/console/dialog.js";
import { el, set, setText } from "/console/dom.js";
import { Live } from "/console/live.js";
import { isRebuilding, lockTable } from "/console/lock-table.js";
import { href, read } from "/console/route.js";
import { signIn } from "/console/sign-in.js";
import { VIEWS } from "/console/views.js";

const STATUS = {
  opening: ["wait", "Opening …"],
  live: ["good", "Live"],
  lost: ["wait", "Connection lost; trying again …"],
  ended: ["bad", "Not live"],
};

const app = document.getElementById("app");
/// The live namespace that views share, so that going from one to the next asks for nothing again.
let live = null;
/// What is said of its lock table.
let said = null;
let view = null;
let frame = null;

function leave() {
  view?.stop?.();
  view = null;
}

function stopLive() {
  live?.stop();
  live = null;
}

function render() {
  if (!auth.who) {
    leave();
    stopLive();
    closeAll();
    frame = null;
    app.replaceChildren(signIn());
    document.title = "Sign in · Holdfast console";
    return;
  }
  const route = read(location.hash, auth);
  frame ??= makeFrame();
  enter(route);
}

function makeFrame() {
  const status = el("span", { class: "chip", role: "status" }, el("span", { class: "dot" }), el("span"));
  const { who } = auth;
  const name = who.operator
    ? [el("div", { text: "Operator" })]
    : [
        el("div", {}, "account ", el("code", { text: who.account })),
        el("div", {}, "key ", el("code", { text: who.keyId })),
      ];
  const leaveButton = el(
    "button",
    { type: "button", on: { click: () => auth.signOut("You signed out.") } },
    "Sign out",
  );
  const side = el("nav", { class: "side", "aria-label": "Views" });
  const main = el("main", { class: "main", id: "main", tabindex: "-1" });
  const top = el(
    "header",
    { class: "top" },
    el(
      "a",
      { class: "brand", href: "#/" },
      el("img", { src: "/console/icon.svg", alt: "" }),
      el("span", { text: "Holdfast" }),
    ),
    status,
    el("span", { class: "space" }),
    el("div", { class: "who" }, name),
    leaveButton,
  );
  app.replaceChildren(el("div", { class: "frame" }, top, side, main));
  return { status, side, main };
}

function enter(route) {
  const isSame =
    live && route.namespace === live.namespace && JSON.stringify(route.prefix) === JSON.stringify(live.prefix);
  leave();
  if (!isSame) stopLive();
  const shown = VIEWS[route.view];
  if (route.namespace !== null && !live) {
    live = new Live(route.namespace, route.prefix);
    live.addEventListener("change", () => {
      showStatus();
      countWaits();
      said?.show(live?.about);
    });
    live.wants = shown.wants ?? live.wants;
    live.start();
  } else if (live) {
    live.wants = shown.wants ?? live.wants;
    live.reload();
  }
  showSide(route);
  showStatus();
  view = shown.open({ route, live });
  said = live && lockTable();
  if (said) view.node.querySelector("h1")?.append(said.mark);
  said?.show(live.about);
  frame.main.replaceChildren(...[said?.node, view.node].filter(Boolean));
  document.title = `${shown.label}${route.namespace === null ? "" : ` · ${route.namespace}`} · Holdfast console`;
}

function showSide(route) {
  const link = (name, namespace) =>
    el(
      "li",
      {},
      el(
        "a",
        { href: href(name, namespace), "aria-current": name === route.view ? "page" : null, data: { view: name } },
        VIEWS[name].label,
        name === "waits" && el("span", { class: "count" }),
      ),
    );
  const group = (of) => Object.keys(VIEWS).filter((name) => VIEWS[name].group === of && VIEWS[name].isFor(auth));
  const parts = [];
  if (route.namespace !== null) {
    parts.push(
      el("h2", { class: "of-namespace name", text: route.namespace }),
      el(
        "ul",
        {},
        group("namespace").map((name) => link(name, route.namespace)),
      ),
    );
  }
  const others = auth.who.operator ? "operator" : "account";
  parts.push(
    el("h2", { text: auth.who.operator ? "Service" : "Account" }),
    el(
      "ul",
      {},
      group(others).map((name) => link(name, null)),
    ),
  );
  frame.side.replaceChildren(...parts);
  frame.side.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  countWaits();
}

function showStatus() {
  const isWaiting = live && live.status !== "ended" && isRebuilding(live.about);
  const [kind, text] = isWaiting ? ["wait", "Rebuilding …"] : live ? STATUS[live.status] : ["", ""];
  frame.status.hidden = !live;
  set(frame.status, "class", `chip ${kind}`);
  setText(frame.status.lastElementChild, text);
}

function countWaits() {
  const count = frame?.side.querySelector("[data-view=waits] .count");
  const waiting = live?.allWaits.length;
  if (count) setText(count, waiting ? `${waiting}${live.moreOfAllWaits ? "+" : ""}` : "");
}

auth.addEventListener("change", () => {
  frame = null;
  render();
});
addEventListener("hashchange", () => {
  render();
  // Whoever listens rather than looks is told where they are now.
  frame?.main.focus({ preventScroll: true });
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
auth.resume();
render();
