// The event stream of a namespace: server-sent events, read with `fetch` since the credential goes in a header. It goes
// on after the last event it has whenever the connection is lost.

import { Problem, auth } from "/console/auth.js";
import { send, suspended } from "/console/api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
/// The service says something every 15 s; a stream that is silent for longer is taken for lost.
const SILENT_MS = 40_000;
const KINDS = "locks,semaphores,pools,latches,barriers,conditions,requests";
/// After these, trying again would be of no use.
const FINAL = ["NAMESPACE_NOT_FOUND", "PERMISSION_DENIED"];

export class Stream extends EventTarget {
  #stopping = new AbortController();
  #reading = null;
  /// The revision up to which everything was told.
  last = null;
  connected = false;

  constructor(namespace) {
    super();
    this.namespace = namespace;
  }

  /// Reads until `stop`, or until the service says that there is nothing more to read. `from` is a first revision.
  async run(from) {
    let pause = FIRST_PAUSE_MS;
    while (!this.#stopping.signal.aborted) {
      try {
        await this.#read(from, () => {
          pause = FIRST_PAUSE_MS;
          this.connected = true;
        });
      } catch (problem) {
        this.connected = false;
        if (this.#stopping.signal.aborted) return;
        if (problem.code === "REVISION_COMPACTED" && this.last === null) {
          from = problem.body.oldest;
          continue;
        }
        if (problem.code === "REVISION_COMPACTED") this.last = from = null;
        suspended(problem);
        if (problem.status === 401) await auth.refused();
        if (!auth.who) return;
        if (FINAL.includes(problem.code)) return this.#tell("ended", { problem });
      }
      if (this.#stopping.signal.aborted) return;
      this.connected = false;
      this.#tell("lost", {});
      await this.#wait(pause * (0.5 + Math.random()));
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }

  stop() {
    this.#stopping.abort();
    this.#reading?.abort();
  }

  async #read(from, opened) {
    const reading = (this.#reading = new AbortController());
    const headers = this.last === null ? {} : { "Last-Event-ID": String(this.last) };
    const query = { kinds: KINDS, ...(this.last === null && from && { from_revision: from }) };
    const response = await send("GET", ["namespaces", this.namespace, "events"], {
      query,
      headers,
      signal: reading.signal,
    });
    opened();
    const lines = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let [rest, message] = ["", {}];
    for (;;) {
      const silent = setTimeout(() => reading.abort(), SILENT_MS);
      const { value, done } = await lines.read().finally(() => clearTimeout(silent));
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const line of parts) {
        if (line === "") {
          this.#take(message);
          message = {};
        } else if (!line.startsWith(":")) {
          const colon = line.indexOf(":");
          message[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
        }
      }
    }
  }

  #take({ id, event, data }) {
    if (event === "error") {
      const body = JSON.parse(data);
      throw new Problem(body.status, body);
    }
    const fresh = this.last === null || Number(id) > this.last;
    if (id !== undefined) this.last = Number(id);
    if (data !== undefined && fresh) this.#tell("event", { event: JSON.parse(data) });
    else if (data === undefined) this.#tell("told", { revision: this.last });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #wait(ms) {
    return new Promise((resolve) => {
      setTimeout(resolve, ms);
      this.#stopping.signal.addEventListener("abort", resolve, { once: true });
    });
  }
}
