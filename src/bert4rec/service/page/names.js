// What items are called: their titles, as far as the service has told them.

import { make } from "./elements.js";

const titles = new Map();

export function remember(items) {
  for (const { item_id, title } of items) titles.set(item_id, title);
}

export const forgetNames = () => titles.clear();
export const withoutName = (ids) => ids.filter((id) => !titles.has(id));
export const nameOf = (id) => titles.get(id)?.trim() || id;

// For a sentence: short, and between marks that keep it from turning the sentence round.
export const quoted = (id) => short(nameOf(id));

export function short(text) {
  const signs = [...text];
  return `\u2068${signs.length > 80 ? `${signs.slice(0, 80).join("")}…` : text}\u2069`;
}

// <bdi> keeps a title that runs from right to left from turning its surroundings round.
export function nameTag(id) {
  const name = nameOf(id);
  return make("bdi", { className: "name", title: name === id ? id : `${name} (${id})`, textContent: name });
}
