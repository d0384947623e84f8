// Accounts, for the operator.

import { list as listOf } from "/console/api.js";
import { el, table } from "/console/dom.js";
import { dateTime, number } from "/console/format.js";
import { empty, head, loading } from "/console/page.js";

export function open() {
  const rows = table(
    "Accounts",
    [
      { label: "Account", cell: (account) => el("code", { text: account.id }) },
      { label: "Name", cell: (account) => el("span", { class: "name", text: account.full_name }) },
      { label: "E-mail", cell: (account) => el("span", { class: "name", text: account.email }) },
      {
        label: "Status",
        cell: (account) =>
          el("span", { class: `chip ${account.status === "ACTIVE" ? "good" : "bad"}`, text: account.status }),
      },
      { label: "Namespaces, at most", right: true, cell: (account) => number(account.max_number_of_namespaces) },
      {
        label: "Requests a second",
        right: true,
        cell: (account) =>
          account.limits.max_requests_per_second === 0 ? "no limit" : number(account.limits.max_requests_per_second),
      },
      { label: "Created", cell: (account) => dateTime(account.created_at) },
    ],
    [],
    (account) => account.id,
  );
  const nothing = el("div", { hidden: true }, empty("No accounts", "Make one with POST /v1/accounts."));
  const shown = loading(
    (signal) => listOf(["accounts"], "accounts", { signal }),
    ({ items }) => {
      rows.show(items);
      nothing.hidden = items.length > 0;
    },
  );
  return {
    node: el(
      "div",
      {},
      head("Accounts", "Tenants of this service."),
      shown.problem,
      el("div", { class: "card table" }, rows.node, nothing),
    ),
    stop: shown.stop,
  };
}
