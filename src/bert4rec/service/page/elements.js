// Making elements. Text from the catalogue only ever becomes text nodes, so a title cannot bring in markup.

export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export const find = (selector, within = document) => within.querySelector(selector);

// New children for a node. Equal ones change nothing, so that a click under way keeps its button.
// What had the focus keeps it, if something new has the same `data-key`.
export function refill(node, children) {
  const old = node.children;
  if (children.length === old.length && children.every((child, each) => child.isEqualNode(old[each]))) return;
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children);
  if (key !== undefined) find(`[data-key="${CSS.escape(key)}"]`, node)?.focus();
}

// Text in a live region is read aloud whenever it is set, even to what it was.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A bar as long as `share`, from 0 to 1, of the room it has. Numbers beside it say the same in words.
export function bar(className, share) {
  const node = make("span", { className: `bar ${className}`, "aria-hidden": "true" });
  node.style.setProperty("--share", share);
  return node;
}

function showNumber(value, options) {
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return value.toLocaleString("en", { ...digits, ...options }).replace("-", "−");
}

export const showScore = (value) => showNumber(value);
export const showEffect = (value) => showNumber(value, { signDisplay: "exceptZero" });
export const showCount = (value) => value.toLocaleString("en");
export const showMoment = (text) =>
  new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
export const plural = (count, word) => `${showCount(count)} ${word}${count === 1 ? "" : "s"}`;
