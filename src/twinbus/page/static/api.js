// Requests to the server of this page, once or again and again, and its stream of changes.

/** GET a JSON answer; throws an Error with the server's own words. */
export async function ask(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  const answer = await fetch(`${path}?${query}`, { headers: { Accept: "application/json" } });
  return read(answer);
}

/** POST an action; returns the server's answer, or throws an Error with its text. */
export async function act(body) {
  const answer = await fetch("/api/actions", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Twinbus-Page": "1" },
    body: JSON.stringify(body),
  });
  const done = await read(answer);
  if (!done.ok) throw new Error(done.text);
  return done;
}

async function read(answer) {
  const text = await answer.text();
  let parsed = null;
  try {
    parsed = JSON.parse(text);
  } catch {
    // An error page of a proxy, or the one line of a 401.
  }
  if (!answer.ok) throw new Error(parsed?.text || text.slice(0, 300) || `HTTP status ${answer.status}`);
  if (parsed === null) throw new Error("the server answered with something other than JSON");
  return parsed;
}

const RETRY_MS = 3_000;

/** Follow the stream as long as the page is open; `takers` are functions by event name, `lost()` is called when it breaks. */
export function follow(takers, lost) {
  const source = new EventSource("/api/stream");
  for (const [name, take] of Object.entries(takers)) {
    source.addEventListener(name, (event) => take(JSON.parse(event.data)));
  }
  source.addEventListener("error", () => {
    lost();
    // The browser retries a broken connection by itself, but not a refusal.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(takers, lost), RETRY_MS);
  });
}

const HIDDEN_MS = 1_000;

/**
 * Ask at once and then every `every_s()` seconds while the tab is visible.
 * `question()` returns a promise, or null when there is nothing to ask. An answer that a restart
 * has overtaken is dropped.
 */
export function poll(question, take, fail, every_s) {
  let generation = 0;
  let timer = 0;

  async function round(mine) {
    let wait_ms = HIDDEN_MS;
    if (!document.hidden) {
      try {
        const answer = await question();
        if (mine === generation && answer !== null) take(answer);
      } catch (error) {
        if (mine === generation) fail(error.message);
      }
      wait_ms = every_s() * 1000;
    }
    if (mine === generation) timer = setTimeout(round, wait_ms, mine);
  }

  return function restart() {
    clearTimeout(timer);
    generation += 1;
    round(generation);
  };
}
