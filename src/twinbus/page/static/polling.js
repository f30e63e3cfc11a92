// Questions that are asked again and again, but only while somebody looks.

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
