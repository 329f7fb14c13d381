// Questions to the service, and what can go wrong with them.

const KEY = "bert4rec-api-key";
const PATIENCE = 20_000; // ms; the service itself gives up sooner

// One line for people. `retryAfter` is in seconds, and null where waiting would not help.
export class Problem extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

// The answer to a GET, or to a POST where there is a body, unless another method is meant. Throws a Problem, or an
// AbortError when told to stop.
export async function ask(path, body, signal, method = body ? "POST" : "GET") {
  try {
    const response = await fetch(path, {
      method,
      headers: { ...(body && { "Content-Type": "application/json" }), ...authorization() },
      body: body && JSON.stringify(body),
      cache: "no-store",
      signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]),
    });
    if (response.ok) return JSON.parse(await response.text(), withTextIds);
    throw await problemOf(response);
  } catch (error) {
    if (error instanceof Problem || signal.aborted) throw error;
    throw new Problem("The service cannot be reached.", { retryAfter: 2 });
  }
}

// On this page, item ids are texts, as in its address. A number of more than 53 bits would not come through here
// unharmed, so its digits are taken as they were sent; browsers that cannot tell them give the number's own.
function withTextIds(key, value, context) {
  return key === "item_id" && typeof value === "number" ? (context?.source ?? String(value)) : value;
}

async function problemOf(response) {
  const { status } = response;
  const told = await response.json().catch(() => ({})); // a proxy may have answered, in its own words
  const passing = [429, 502, 503, 504].includes(status);
  const retryAfter = passing ? Number(response.headers.get("Retry-After")) || 2 : null;
  const message = told.detail ?? `The service failed to answer (${status}).`;
  return new Problem(message, { status, code: told.code, retryAfter });
}

// A header holds bytes, and fetch refuses characters that are not; a key may have any.
function authorization() {
  const key = readKey();
  return key ? { Authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}` } : {};
}

// Kept for this tab only. Browsers that forbid storage keep it until the page is left.
let keyInMemory = "";

export function readKey() {
  try {
    return sessionStorage.getItem(KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

export function keepKey(key) {
  keyInMemory = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // Then for this visit.
  }
}
