// The search box: a combobox with a list of suggestions (ARIA practices: "list autocomplete").
// The focus stays in the box; `aria-activedescendant` names the suggestion that Enter would take.

import { find, make, plural } from "./elements.js";
import { nameOf, nameTag, remember } from "./names.js";
import { ask } from "./service.js";

const PAUSE = 100; // ms without a keystroke before the service is asked
const LIMIT = 20;

// In `root`; `isHidden` tells of an item whether it is.
export function startSearch(root, { choose, fail, isHidden }) {
  const input = find("input", root);
  const list = find("ul", root);
  const status = find("[role=status]", root);
  let ids = [];
  let active = -1;
  let timer;
  let pending = new AbortController();

  function option(id, place) {
    const parts = nameOf(id) === id ? [] : [make("small", { textContent: id })];
    if (isHidden(id)) parts.unshift(make("small", { className: "mark", textContent: "hidden" }));
    return make("li", { role: "option", id: `${list.id}-${place}` }, nameTag(id), ...parts);
  }

  function show(found) {
    ids = found;
    list.replaceChildren(...ids.map(option));
    list.hidden = !ids.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    activate(ids.length ? 0 : -1);
  }

  function activate(place) {
    active = place;
    [...list.children].forEach((node, each) => node.setAttribute("aria-selected", String(each === active)));
    if (active < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", list.children[active].id);
    list.children[active]?.scrollIntoView({ block: "nearest" });
  }

  function close() {
    clearTimeout(timer);
    pending.abort();
    show([]);
    status.textContent = "";
  }

  async function search() {
    pending.abort();
    const { signal } = (pending = new AbortController());
    const query = input.value.trim();
    if (!query) return close();
    try {
      const { items } = await ask(`v1/items?${new URLSearchParams({ query, limit: LIMIT })}`, null, signal);
      remember(items);
      show(items.map((item) => item.item_id));
      status.textContent = items.length ? plural(items.length, "suggestion") : "Nothing found.";
    } catch (error) {
      if (!signal.aborted) fail(error);
    }
  }

  function take(place) {
    const id = ids[place];
    input.value = "";
    close();
    choose(id);
  }

  const keys = {
    ArrowDown: () => (list.hidden ? search() : activate((active + 1) % ids.length)),
    ArrowUp: () => (list.hidden ? search() : activate((active - 1 + ids.length) % ids.length)),
    Enter: () => active >= 0 && take(active),
    Escape: () => {
      if (list.hidden) input.value = "";
      close();
    },
  };

  input.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.isComposing) return; // Enter may belong to an input method
    event.preventDefault();
    keys[event.key]();
  });
  input.addEventListener("input", () => {
    // Suggestions for another text must not be taken by a quick Enter.
    pending.abort();
    activate(-1);
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  input.addEventListener("blur", close);
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the box
  list.addEventListener("click", (event) => {
    const place = [...list.children].indexOf(event.target.closest("li"));
    if (place >= 0) take(place);
  });
  return { again: () => document.activeElement === input && search() };
}
