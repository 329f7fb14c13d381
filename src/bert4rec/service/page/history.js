// The history, newest first: what was added last stands nearest to where it was added.

import { find, make, plural, refill, say, showCount } from "./elements.js";
import { nameOf, nameTag, short } from "./names.js";

const SHOWN = 10; // the rest is folded away: nobody wants to tab through hundreds of buttons

// `change` gets the new history. Returns a function that shows one.
export function startHistory(change) {
  const section = find("#history");
  const note = find("#history-note");
  const list = find("ol", section);
  const clear = find("#clear");
  const older = find("#older");
  let isUnfolded = false;
  let shown = { history: [], context: null, user: null };

  // Buttons go by the row they are in and look up the history of the moment: an equal row may outlive a change.
  const placeIn = (row) => shown.history.length - 1 - row;

  function swap(row, other) {
    if (other < 0 || other >= shown.history.length) return;
    const changed = [...shown.history];
    [changed[placeIn(row)], changed[placeIn(other)]] = [changed[placeIn(other)], changed[placeIn(row)]];
    change(changed);
  }

  function remove(row) {
    change(shown.history.toSpliced(placeIn(row), 1));
    if (list.contains(document.activeElement)) return;
    (find("li:last-child button:last-child", list) ?? find("#search")).focus();
  }

  function makeRow(id, row, lot, occurrence) {
    // Moving keeps the focus on the item that moves, removing on the place where the next one now stands.
    const button = (sign, label, key, isPossible, onclick) =>
      make("button", {
        type: "button",
        textContent: sign,
        title: label,
        "aria-label": `${label}: ${nameOf(id)}`,
        "aria-disabled": String(!isPossible), // not `disabled`, which would drop the focus
        "data-key": key,
        onclick,
      });
    return make(
      "li",
      { className: lot ? "apart" : "" },
      make("span", { className: "item" }, nameTag(id), ...(lot ? [make("small", { textContent: lot })] : [])),
      button("↑", "Move up", `up ${occurrence} ${id}`, row > 0, () => swap(row, row - 1)),
      button("↓", "Move down", `down ${occurrence} ${id}`, placeIn(row) > 0, () => swap(row, row + 1)),
      button("×", "Remove", `remove ${row}`, true, () => remove(row)),
    );
  }

  // `user` is whose history it is, or null.
  function show(history, context, user) {
    shown = { history, context, user };
    const newestFirst = history.toReversed();
    const lots = whatBecameOf(newestFirst, context);
    const occurrences = countOccurrences(newestFirst);
    const rows = newestFirst
      .slice(0, isUnfolded ? undefined : SHOWN)
      .map((id, row) => makeRow(id, row, lots[row], occurrences[row]));
    refill(list, rows);
    say(note, noteOn(history, context, user));
    clear.hidden = !history.length && user === null;
    const folded = history.length - SHOWN;
    older.hidden = folded <= 0;
    older.textContent = isUnfolded ? "Show fewer" : `Show ${plural(folded, "older item")}`;
    older.setAttribute("aria-expanded", String(isUnfolded));
  }

  clear.addEventListener("click", () => {
    change([]);
    find("#search").focus();
  });
  older.addEventListener("click", () => {
    isUnfolded = !isUnfolded;
    show(shown.history, shown.context, shown.user);
  });
  return show;
}

// For each item a word on why the model does not look at it, or "". Without a context, nothing is known yet.
function whatBecameOf(newestFirst, context) {
  const unknown = new Set(context?.unknown_items);
  let left = context ? context.used : newestFirst.length;
  return newestFirst.map((id) => {
    if (unknown.has(id)) return "unknown to the model";
    return left-- > 0 ? "" : "too long ago";
  });
}

function countOccurrences(ids) {
  const counts = new Map();
  return ids.map((id) => {
    counts.set(id, (counts.get(id) ?? 0) + 1);
    return counts.get(id);
  });
}

function noteOn(history, context, user) {
  const whose = user === null ? "" : `Stored of ${short(user)}: `;
  if (!history.length) return user === null ? "Empty so far." : `${whose}${context ? "nothing." : "…"}`;
  const parts = [user === null ? "Newest first." : `${whose}${plural(history.length, "action")}, newest first.`];
  const unknown = context?.unknown_items ?? [];
  const known = history.filter((id) => !unknown.includes(id)).length;
  if (context && context.used < known) {
    parts.push(`The model looks at the newest ${showCount(context.used)} of ${showCount(known)}.`);
  }
  if (unknown.length) parts.push(`Skipped, as the model does not know them: ${listed(unknown)}.`);
  return parts.join(" ");
}

function listed(ids, most = 5) {
  const more = ids.length - most;
  return ids.slice(0, most).join(", ") + (more > 0 ? ` and ${showCount(more)} more` : "");
}
