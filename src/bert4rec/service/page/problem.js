// The line that says what went wrong, with a way out: try again, by hand or after a while, or enter a key.

import { find, say } from "./elements.js";
import { keepKey, readKey } from "./service.js";

const LONGEST_WAIT = 30; // seconds

export function startProblemLine(retry) {
  const box = find("#problem");
  const line = find("p", box);
  const form = find("form", box);
  const key = find("input", form);
  const button = find("#problem > button");
  let timer;
  let failures = 0;

  function show(problem) {
    clearTimeout(timer);
    const needsKey = problem.status === 401;
    const wait = problem.retryAfter && Math.min(LONGEST_WAIT, problem.retryAfter * 2 ** failures++);
    if (wait) timer = setTimeout(retry, wait * 1000);
    const message = needsKey ? keyMessage() : problem.message + (wait ? " Trying again soon." : "");
    say(line, message);
    if (needsKey && form.hidden) setTimeout(() => key.focus());
    form.hidden = !needsKey;
    button.hidden = needsKey;
    box.hidden = false;
  }

  function clear() {
    clearTimeout(timer);
    failures = 0;
    box.hidden = true;
    say(line, "");
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(key.value.trim());
    key.value = "";
    retry();
  });
  button.addEventListener("click", retry);
  window.addEventListener("online", retry);
  return { show, clear };
}

function keyMessage() {
  return readKey() ? "The service did not accept this key." : "The service requires an API key.";
}
