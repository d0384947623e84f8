// What is known of one namespace, kept up to date: the locks under a path, who waits for what, sessions, and the latest
// events. The event stream says what changed; only that is asked for again. Two things have no events, so they are looked at
// from time to time: requests that begin to wait, and holds that were extended.

import { call, list } from "/console/api.js";
import { pathKey } from "/console/format.js";
import { isRebuilding, watch } from "/console/lock-table.js";
import { Stream } from "/console/stream.js";
import { endsAt } from "/console/time.js";

const LOCKS_AT_ONCE = 1000;
const MAX_EVENTS = 500;
const MAX_WAITS = 100;
/// Events of these things concern the lock of the same path: it was asked for, or a condition of it was awaited.
const OF_LOCKS = ["lock", "condition"];
/// More paths than this are not asked for one by one.
const MAX_ONE_BY_ONE = 24;
const GATHER_MS = 60;
const LOOK_EVERY_MS = 2000;
const FEW_LOCKS = 200;
/// Many locks are read again with one look of so many.
const SELDOM = 10;
const HISTORY = 1000;

export class Live extends EventTarget {
  #stream;
  #stopping = new AbortController();
  #dirty = new Map();
  #gathering = false;
  #busy = Promise.resolve();
  #turns = 0;
  #looks = 0;
  #maxLocks = LOCKS_AT_ONCE;
  /// `opening`, `live`, `lost` or `ended`.
  status = "opening";
  problem = null;
  /// The namespace itself, with its lock table if that is in memory.
  about = null;
  locks = new Map();
  moreLocks = false;
  waits = [];
  moreWaits = false;
  /// Requests for permits of semaphores and for members of pools.
  permitWaits = [];
  morePermitWaits = false;
  awaits = [];
  moreAwaits = false;
  sessions = [];
  moreSessions = false;
  events = [];
  /// What a view needs: views that do not show sessions need not have them asked for.
  wants = { locks: true, waits: true, sessions: false };

  constructor(namespace, prefix) {
    super();
    Object.assign(this, { namespace, prefix });
    this.#stream = new Stream(namespace);
    this.#stream.addEventListener("told", () => this.#become("live"));
    this.#stream.addEventListener("lost", () => this.#become("lost"));
    this.#stream.addEventListener("ended", ({ detail }) => this.#fail(detail.problem));
    this.#stream.addEventListener("event", ({ detail }) => this.#happened(detail.event));
  }

  async start() {
    const { signal } = this.#stopping;
    const timer = setInterval(() => document.hidden || this.#look(), LOOK_EVERY_MS);
    signal.addEventListener("abort", () => clearInterval(timer));
    watch(this.namespace, signal, (about) => this.#learn(about));
    while (!signal.aborted) {
      try {
        // Where the namespace stands, so that the stream can begin a little before it.
        const { lock } = await this.#call("POST", ["lock-sets", "get"], { body: { path: [] } });
        await this.reload();
        return this.#stream.run(Math.max(1, lock.revision - HISTORY));
      } catch (problem) {
        if (signal.aborted) return;
        if (!passes(problem)) return this.#fail(problem);
        this.#become("lost");
        // A lock table that is being rebuilt answers nothing; its sessions can be listed.
        if (this.wants.sessions && isRebuilding(this.about)) await this.#loadSessions().catch(() => null);
        await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      }
    }
  }

  /// Reads further locks, when there are more than were read.
  readOn() {
    this.#maxLocks += LOCKS_AT_ONCE;
    return this.reload();
  }

  stop() {
    this.#stopping.abort();
    this.#stream.stop();
  }

  /// All requests that wait, for whatever, in the order in which they began to.
  get allWaits() {
    const all = [...this.waits, ...this.permitWaits, ...this.awaits];
    return all.sort((one, other) => Date.parse(one.waiting_since) - Date.parse(other.waiting_since));
  }

  get moreOfAllWaits() {
    return this.moreWaits || this.morePermitWaits || this.moreAwaits;
  }

  /// Asks for everything that is wanted anew.
  reload() {
    return this.#inTurn(async () => {
      if (this.wants.locks) await this.#loadLocks();
      await this.#loadOthers();
    });
  }

  #call(method, path, options = {}) {
    return call(method, ["namespaces", this.namespace, ...path], { ...options, signal: this.#stopping.signal });
  }

  async #loadLocks() {
    // What changes from here on is asked for again afterwards.
    this.#dirty.clear();
    const { items, more } = await this.#list("locks", "locks", { query: { prefix: this.prefix }, max: this.#maxLocks });
    this.locks = new Map(items.map((lock) => [pathKey(lock.path), stamped(lock)]));
    this.moreLocks = more;
  }

  #list(path, field, options) {
    return list(["namespaces", this.namespace, path], field, { ...options, signal: this.#stopping.signal });
  }

  async #loadOthers() {
    if (this.wants.sessions) await this.#loadSessions();
    if (this.wants.waits) await this.#loadAllWaits();
    this.#changed();
  }

  async #loadSessions() {
    const { items, more } = await this.#list("sessions", "sessions", { max: 200 });
    this.sessions = items.map((session) => ({ ...session, ends: endsAt(session.remaining_ms) }));
    this.moreSessions = more;
    this.#changed();
  }

  #learn(about) {
    const isReadyAgain = isRebuilding(this.about) && !isRebuilding(about);
    this.about = about;
    this.#changed();
    if (isReadyAgain) this.reload();
  }

  /// Each list has a page of its own, so that many who wait for one kind of thing hide none who wait for another.
  async #loadAllWaits() {
    const kinds = ["locks", "semaphores,pools", "conditions"];
    const lists = await Promise.all(kinds.map((some) => this.#loadWaits(some)));
    [[this.waits, this.moreWaits], [this.permitWaits, this.morePermitWaits], [this.awaits, this.moreAwaits]] = lists;
  }

  async #loadWaits(kinds) {
    const page = await this.#call("GET", ["waits"], { query: { kinds, page_size: MAX_WAITS } });
    const waits = page.waits.map((wait) => ({ ...wait, ends: endsAt(wait.remaining_ms) }));
    return [waits, page.next_page_token !== null];
  }

  #happened(event) {
    this.events.unshift(event);
    this.events.length = Math.min(this.events.length, MAX_EVENTS);
    for (const { path } of event.claims) this.#touch(path);
    if (OF_LOCKS.includes(event.kind)) this.#touch(event.path);
    this.#gather();
  }

  #touch(path) {
    if (this.prefix.every((segment, index) => path[index] === segment)) this.#dirty.set(pathKey(path), path);
  }

  /// Events come in bursts; what they concern is asked for once.
  #gather() {
    this.#changed();
    if (this.#gathering) return;
    this.#gathering = true;
    setTimeout(() => {
      this.#gathering = false;
      this.#inTurn(() => this.#refresh());
    }, GATHER_MS);
  }

  async #refresh() {
    const paths = this.wants.locks ? [...this.#dirty.values()] : [];
    this.#dirty.clear();
    if (paths.length > MAX_ONE_BY_ONE) await this.#loadLocks();
    else {
      const asked = paths.map((path) => this.#call("POST", ["lock-sets", "get"], { body: { path } }));
      for (const { lock } of await Promise.all(asked)) {
        if (lock.state === "UNLOCKED") this.locks.delete(pathKey(lock.path));
        else this.locks.set(pathKey(lock.path), stamped(lock));
      }
    }
    await this.#loadOthers();
  }

  /// Looks at what has no events. All locks are read again when they are few, and less often when they are many; then
  /// at least those whose time is over by what was last heard.
  #look() {
    if (!this.#stream.connected || this.#turns > 0) return;
    this.#looks++;
    if (this.locks.size <= FEW_LOCKS || this.#looks % SELDOM === 0) return this.reload();
    const now = performance.now();
    for (const lock of this.locks.values()) if (lock.ends !== null && lock.ends <= now) this.#touch(lock.path);
    this.#inTurn(() => this.#refresh());
  }

  /// One after the other, so that an older answer never replaces a newer one.
  #inTurn(work) {
    this.#turns++;
    this.#busy = this.#busy
      .then(work)
      .then(() => this.#stream.connected && this.#become("live"))
      .catch((problem) => {
        if (this.#stopping.signal.aborted) return;
        if (["NAMESPACE_NOT_FOUND", "PERMISSION_DENIED"].includes(problem.code)) this.#fail(problem);
        else if (passes(problem)) this.#become("lost");
        else if (!(problem.status > 0)) reportError(problem);
      })
      .finally(() => this.#turns--);
    return this.#busy;
  }

  #become(status) {
    if (this.status === status || this.status === "ended") return;
    // After a gap the stream tells everything that was missed, except what has no events.
    if (status === "live" && this.status === "lost") this.reload();
    this.status = status;
    this.#changed();
  }

  #fail(problem) {
    this.problem = problem;
    this.status = "ended";
    this.#changed();
    this.stop();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

/// Whether the same call may be answered later.
const passes = (problem) => problem.status === 0 || problem.status === 429 || problem.status >= 500;

/// A lock with the instants, on this page's clock, at which its holds end.
function stamped(lock) {
  const holders = (lock.write_lock_holder ? [lock.write_lock_holder] : lock.read_lock_holders).map((holder) => ({
    ...holder,
    ends: endsAt(holder.remaining_ms),
    total: holder.expires_at === null ? null : Math.max(1, new Date(holder.expires_at) - new Date(holder.locked_at)),
  }));
  const ending = holders.map((holder) => holder.ends).filter((ends) => ends !== null);
  return { ...lock, holders, ends: ending.length ? Math.min(...ending) : null };
}
