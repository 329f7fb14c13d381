// The page's state in its address: #h=ID,ID,…&item=ID, oldest first, or #user=ID&item=ID. Behind the #, because that part stays in
// the browser: histories are nobody else's business, and servers limit the length of the rest.

const MAX_HISTORY = 1000; // as many as the service takes
const MAX_ID = 256;

export function readAddress() {
  const fields = new Map(location.hash.slice(1).split("&").map((field) => field.split("=", 2)));
  const idsIn = (name) => (fields.get(name) ?? "").split(",").filter(Boolean).map(decode);
  const user = idsIn("user")[0] ?? null;
  return { history: user === null ? idsIn("h").slice(-MAX_HISTORY) : [], item: idsIn("item")[0] ?? null, user };
}

export function writeAddress({ history, item, user }) {
  const fields = [];
  if (user !== null) fields.push(`user=${encodeURIComponent(user)}`);
  else if (history.length) fields.push(`h=${history.map(encodeURIComponent).join(",")}`);
  if (item !== null) fields.push(`item=${encodeURIComponent(item)}`);
  window.history.pushState(null, "", `${location.pathname}${fields.length ? "#" : ""}${fields.join("&")}`);
}

// What cannot be an id becomes one that no catalogue has, and is then reported like any other unknown id.
function decode(text) {
  try {
    text = decodeURIComponent(text);
  } catch {
    // Cut off or mangled on its way here: left as it is.
  }
  return text.replaceAll("\0", "�").slice(0, MAX_ID).toWellFormed(); // the cut may go through a character
}
