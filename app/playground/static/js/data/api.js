// The server's endpoints, and the key that they may ask for: it is kept in this module's memory, and nowhere else.

let key = "";

/** Use a key from now on; empty: none. */
export function useKey(given) {
  key = given.trim();
}

/** An error of the server, in its words. */
export class ServerError extends Error {
  constructor(status, message, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds that the server asked to wait
  }
}

function headers(more = {}) {
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** The error of an answer that is not ok. */
export async function errorOf(response) {
  const text = await response.text();
  let message;
  try {
    ({ message } = JSON.parse(text).error);
  } catch {
    message = text.slice(0, 300) || `the server answered with status ${response.status}`;
  }
  return new ServerError(response.status, message, Number(response.headers.get("Retry-After")) || 0);
}

async function answered(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "the server cannot be reached");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The JSON of a GET. */
export async function getJson(path) {
  return (await answered(path, { headers: headers() })).json();
}

/** The text of a GET. */
export async function getText(path) {
  return (await answered(path, { headers: headers() })).text();
}

/** The answer to a JSON body, its own body unread. */
export async function post(path, body, { signal, more = {} } = {}) {
  const sent = headers({ "Content-Type": "application/json", ...more });
  return answered(path, { method: "POST", headers: sent, body: JSON.stringify(body), signal });
}

/** The answer to a GET, its body unread. */
export async function getStream(path, { signal, more }) {
  return answered(path, { headers: headers(more), signal });
}

/** Send a DELETE, even if the page is left meanwhile. */
export async function remove(path) {
  await answered(path, { method: "DELETE", headers: headers(), keepalive: true });
}

/** The first model that is served, with what may be asked of its speculation (docs/reference/http.md). */
export async function servedModel() {
  return (await getJson("/v1/models")).data[0];
}
