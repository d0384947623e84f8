// All views: what they are called, whom they are for, and what of a live namespace they need.

import * as accounts from "/console/accounts.js";
import * as audit from "/console/audit.js";
import * as barriers from "/console/barriers.js";
import * as cluster from "/console/cluster.js";
import * as events from "/console/events.js";
import * as keys from "/console/keys.js";
import * as latches from "/console/latches.js";
import * as locks from "/console/locks.js";
import * as namespaces from "/console/namespaces.js";
import * as pools from "/console/pools.js";
import * as semaphores from "/console/semaphores.js";
import * as sessions from "/console/sessions.js";
import * as usage from "/console/usage.js";
import * as waits from "/console/waits.js";

const anybody = () => true;
const with_ =
  (...scopes) =>
  (auth) =>
    scopes.some((scope) => auth.may(scope));
const readers = with_("locks:read");

export const VIEWS = {
  locks: {
    label: "Locks",
    group: "namespace",
    isFor: readers,
    open: locks.open,
    wants: { locks: true, waits: true },
  },
  waits: { label: "Waits", group: "namespace", isFor: readers, open: waits.open, wants: { waits: true } },
  sessions: {
    label: "Sessions",
    group: "namespace",
    isFor: readers,
    open: sessions.open,
    wants: { waits: true, sessions: true },
  },
  semaphores: {
    label: "Semaphores",
    group: "namespace",
    isFor: readers,
    open: semaphores.open,
    wants: { waits: true },
  },
  pools: { label: "Pools", group: "namespace", isFor: readers, open: pools.open, wants: { waits: true } },
  latches: { label: "Latches", group: "namespace", isFor: readers, open: latches.open, wants: { waits: true } },
  barriers: { label: "Barriers", group: "namespace", isFor: readers, open: barriers.open, wants: { waits: true } },
  events: { label: "Events", group: "namespace", isFor: readers, open: events.open, wants: { waits: true } },
  namespaces: { label: "Namespaces", group: "account", isFor: anybody, open: namespaces.open },
  keys: { label: "Keys", group: "account", isFor: with_("account:admin"), open: keys.open },
  usage: {
    label: "Usage",
    group: "account",
    isFor: with_("locks:read", "namespaces:admin", "account:admin"),
    open: usage.open,
  },
  audit: { label: "Audit", group: "account", isFor: with_("account:admin"), open: audit.open },
  cluster: { label: "Cluster", group: "operator", isFor: anybody, open: cluster.open },
  accounts: { label: "Accounts", group: "operator", isFor: anybody, open: accounts.open },
  operations: { label: "Audit", group: "operator", isFor: anybody, open: audit.open },
};
