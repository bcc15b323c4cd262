// Requests to the server of this page. An error is a problem of RFC 9457, with field, value, nearest and fix.

const KEY = "precision-time token";

/** What the server refused: `status` (0: it was not reached), `detail`, and `field`, `value`, `nearest`, `fix`. */
export class Problem extends Error {
  constructor(status, content) {
    super(content.detail ?? content.title ?? `the server answered ${status}`);
    this.status = status;
    this.field = content.field ?? null;
    this.nearest = Array.isArray(content.nearest) ? content.nearest.map(String) : [];
  }
}

/** The JSON that `path` answers; with a `body` by POST. Raises `Problem`, or AbortError where `signal` ended it. */
export async function ask(path, body, signal) {
  let reply;
  let text;
  try {
    reply = await send(path, body, signal);
    if (reply.status === 401 && (await askForToken())) reply = await send(path, body, signal);
    text = await reply.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server does not answer. It may have been stopped; the page goes on once it is back." });
  }
  const content = parsed(text);
  if (!reply.ok || content === null) throw new Problem(reply.status, content ?? {});
  return content;
}

/** The JSON of a text; null where it is none, such as the page of a proxy. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function send(path, body, signal) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body === undefined) return fetch(path, { headers, signal });
  headers["Content-Type"] = "application/json";
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

let asking = null;
/** Whether the user gave a token; several requests that need one ask once. */
function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token");
    dialog.addEventListener("close", () => {
      asking = null;
      const given = input.value.trim();
      input.value = "";
      if (given) sessionStorage.setItem(KEY, given);
      resolve(given !== "");
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** A function that asks for the latest thing only: a new call ends the one before. */
export function latest() {
  let control = null;
  return (path, body) => {
    control?.abort();
    control = new AbortController();
    return ask(path, body, control.signal);
  };
}
