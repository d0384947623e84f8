// Who is signed in. An API key stays in the memory of this page: what is used, and kept in this tab's session storage so
// that a reload does not sign out, is a token got for it, good for an hour at most. Nothing of it is ever in an address.

const KEPT = "holdfast-console-token";
const TOKEN_MS = 3_600_000;
/// A token is changed for a new one when less than this is left of it.
const RENEW_MS = 600_000;
/// But not sooner than this after the last change: the token of a key that ends soon ends with it.
const KEEP_MS = 60_000;

/// An answer that is an error of the service, or none at all (`status` 0).
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || "the service did not answer");
    Object.assign(this, { status, code: body.code ?? "", body });
  }
}

/// Reads an answer's problem, whatever came.
export async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  return new Problem(
    response.status,
    body.detail ? body : { title: `the service answered ${response.status}`, ...body },
  );
}

/// What a token says of itself; null when it is none.
function claimsOf(token) {
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")), (one) =>
      one.charCodeAt(0),
    );
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return null;
  }
}

class Auth extends EventTarget {
  #key = null;
  #bearer = null;
  #renewing = null;
  #taken = 0;
  /// `{operator, account, keyId, scopes, namespaces, ends}`, or null when nobody is signed in.
  who = null;
  /// Why nobody is.
  reason = null;

  get bearer() {
    return this.#bearer;
  }

  may(scope) {
    return Boolean(this.who?.scopes.includes(scope));
  }

  /// Takes up what this tab kept over a reload.
  resume() {
    const token = sessionStorage.getItem(KEPT);
    if (!token) return false;
    this.#take(token);
    if (!this.who || this.who.ends <= Date.now()) {
      this.signOut("You were signed out: after a reload a sign-in lasts an hour at most. Sign in again.");
      return false;
    }
    return true;
  }

  /// Signs in with an API key, a token or the operator token; throws a `Problem` when it is not good.
  async signIn(secret) {
    if (secret.startsWith("hfop_")) {
      await this.#ask("/v1/cluster", secret);
      this.#bearer = secret;
      this.who = { operator: true, account: null, keyId: null, scopes: [], namespaces: null, ends: Infinity };
    } else if (secret.startsWith("hf_")) {
      await this.#exchange(secret);
      this.#key = secret;
    } else if (claimsOf(secret)) {
      await this.#ask("/v1/usage", secret);
      this.#take(secret);
    } else {
      throw new Problem(0, {
        detail: "That is neither an API key (hf_…), nor a token, nor the operator token (hfop_…).",
      });
    }
    this.reason = null;
    this.dispatchEvent(new Event("change"));
  }

  signOut(reason = null) {
    if (!this.who && !this.#bearer && this.reason) return;
    this.#key = this.#bearer = this.who = null;
    this.reason = reason;
    sessionStorage.removeItem(KEPT);
    this.dispatchEvent(new Event("change"));
  }

  /// Changes a token that ends soon for a new one, while the key is known.
  async fresh() {
    const now = Date.now();
    if (this.#key && this.who && this.who.ends - now < RENEW_MS && now - this.#taken > KEEP_MS)
      await this.renew().catch(() => {});
  }

  /// The service refused the credential: gets a new token, or signs out and says why. True when there is a new one.
  async refused() {
    if (!this.who) return false;
    if (this.#key) {
      try {
        await this.renew();
        return true;
      } catch (problem) {
        if (problem.status !== 401 && problem.status !== 403) return false;
        this.signOut(`You were signed out: ${this.#named()} was revoked or has expired. Sign in with another key.`);
        return false;
      }
    }
    const over = this.who.ends <= Date.now();
    this.signOut(
      over
        ? "You were signed out: the sign-in has run out. Sign in again."
        : `You were signed out: ${this.#named()} was revoked. Sign in with another key.`,
    );
    return false;
  }

  renew() {
    this.#renewing ??= this.#exchange(this.#key).finally(() => {
      this.#renewing = null;
    });
    return this.#renewing;
  }

  #named() {
    return this.who.operator ? "the operator token" : `the API key ${this.who.keyId}`;
  }

  async #exchange(key) {
    const { token } = await this.#ask("/v1/tokens", key, { ttl_ms: TOKEN_MS });
    this.#take(token);
    sessionStorage.setItem(KEPT, token);
  }

  #take(token) {
    const claims = claimsOf(token);
    if (!claims) return;
    this.#bearer = token;
    this.#taken = Date.now();
    this.who = {
      operator: false,
      account: claims.sub,
      keyId: claims.key_id,
      scopes: (claims.scope ?? "").split(" "),
      namespaces: claims.namespaces ?? null,
      ends: claims.exp * 1000,
    };
  }

  async #ask(path, secret, body) {
    const headers = { Authorization: `Bearer ${secret}`, ...(body && { "Content-Type": "application/json" }) };
    const options = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) };
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Problem(0, { detail: "The service cannot be reached." });
    }
    // A token may lack the scope of the call that tries it; it is good all the same.
    if (response.status === 403 && path === "/v1/usage") return {};
    if (!response.ok) throw await problemOf(response);
    return response.json();
  }
}

export const auth = new Auth();
