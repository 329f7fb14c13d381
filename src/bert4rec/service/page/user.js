// A user by id: what the service has stored of them becomes the history.

import { find } from "./elements.js";

// `choose` gets the id. Returns a function that shows whose history it is, or null.
export function startUser(choose) {
  const form = find("#user-form");
  const input = find("#user");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const user = input.value.trim();
    if (user) choose(user);
  });
  return (user) => {
    if (document.activeElement !== input || user !== null) input.value = user ?? "";
  };
}
