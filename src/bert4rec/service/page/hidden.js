// Items that are never recommended for now: the list of them, and the line that takes back what was just hidden.

import { find, make, plural, refill, say, showCount, showMoment } from "./elements.js";
import { nameOf, nameTag, quoted } from "./names.js";

// `show` lets an item be recommended again.
export function startHidden(show) {
  const section = find("#hidden");
  const list = find("ol", section);
  const note = find("#hidden-note");
  const [undoText, undo] = [find("#undo [role=status]"), find("#undo button")];
  let taken = null;

  function makeRow({ item_id: id, ...dates }, place) {
    const button = make("button", {
      type: "button",
      textContent: "Show again",
      "aria-label": `Show again: ${nameOf(id)}`,
      "data-key": `show ${place}`,
      onclick: () => showAgain(id),
    });
    const what = make("span", { className: "item" }, nameTag(id), make("small", { textContent: periodOf(dates) }));
    return make("li", {}, what, button);
  }

  async function showAgain(id) {
    await show(id);
    if (!list.contains(document.activeElement)) (find("li:last-child button", list) ?? find("summary", section)).focus();
  }

  function fill({ items, total }) {
    const hidden = items.filter((item) => item.hidden_now).length;
    find("#hidden-count").textContent = total ? `(${showCount(total)})` : "";
    refill(list, items.map(makeRow));
    const more = total > items.length ? ` The ${showCount(items.length)} that began last are listed.` : "";
    say(note, total ? `Hidden now: ${plural(hidden, "item")}.${more}` : "Nothing is hidden.");
  }

  // What was just hidden, or null.
  function offerUndo(id) {
    taken = id;
    say(undoText, id === null ? "" : `Hidden: ${quoted(id)}.`);
    undo.hidden = id === null;
  }

  undo.addEventListener("click", async () => {
    await show(taken);
    if (undo.hidden) find("#recommendations").focus();
  });
  return { fill, offerUndo };
}

function periodOf({ from, until, hidden_now: isHidden }) {
  const end = until ? ` until ${showMoment(until)}` : "";
  if (isHidden) return `since ${showMoment(from)}${end && `,${end}`}`;
  return new Date(from) > new Date() ? `to be hidden from ${showMoment(from)} on${end && `,${end}`}` : `was hidden${end}`;
}
