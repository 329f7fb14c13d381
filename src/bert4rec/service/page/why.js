// Why an item was recommended: what each action did for its score, and how much attention it got.

import { bar, find, make, plural, refill, say, showEffect, showScore } from "./elements.js";
import { nameTag, quoted } from "./names.js";

const MANY = 8; // columns; above that, one layer at a time is shown first

export function startWhy(close) {
  const section = find("#why");
  const title = find("h2", section);
  const status = find("[role=status]", section);
  const choices = find("#attention");
  const [layer, head] = [find("#layer"), find("#head")];
  const scroll = find(".scroll", section);
  const closeButton = find("#close");
  let explained = null;

  function fillChoices() {
    const attention = explained?.attention;
    choices.hidden = find("#heads-note").hidden = !attention;
    if (!attention) return;
    const [layers, heads] = [attention.length, attention[0].length];
    const isNew = [fill(layer, layers), fill(head, heads)].includes(true);
    if (isNew && layers * heads > MANY) layer.value = layers;
  }

  function showTable() {
    scroll.hidden = !explained?.contributions.length;
    if (scroll.hidden) return;
    const heads = chosenHeads(explained.attention, Number(layer.value), Number(head.value));
    refill(find("table", scroll), tableOf(explained, heads));
  }

  // `id` is null where nothing is chosen; `found` is a text where there is no explanation. `answeredBy` is the arm of
  // a test that recommended; explanations are always those of the first.
  function show(id, found, answeredBy) {
    explained = id === null || typeof found === "string" ? null : found;
    title.replaceChildren(...(id === null ? ["Why?"] : ["Why ", nameTag(id), "?"]));
    closeButton.hidden = id === null;
    if (id === null) say(status, "Choose a recommendation to see what it rests on.");
    else say(status, explained ? summary(explained) + asSeenBy(explained.model.arm, answeredBy) : found);
    fillChoices();
    showTable();
  }

  // Beside the list there is nothing to do; below it, as on a phone, the answer would be off the screen.
  function reveal() {
    const { top } = section.getBoundingClientRect();
    if (top < 0 || top > window.innerHeight / 2) section.scrollIntoView();
  }

  layer.addEventListener("change", showTable);
  head.addEventListener("change", showTable);
  closeButton.addEventListener("click", close);
  const setBusy = (isBusy) => section.setAttribute("aria-busy", String(isBusy));
  return { show, setBusy, reveal };
}

// Choices from 1 to `count`, or all; returns whether they are new. If not, what was chosen stays chosen.
function fill(select, count) {
  if (select.options.length === count + 1) return false;
  const values = [...Array(count + 1).keys()];
  select.replaceChildren(...values.map((value) => make("option", { value, textContent: value || "all" })));
  return true;
}

function asSeenBy(arm, answeredBy) {
  return answeredBy && arm !== answeredBy ? ` As ${arm} sees it; ${answeredBy} recommended.` : "";
}

function summary({ item, contributions }) {
  if (!contributions.length) {
    return `No known item in the history: it is popular, with ${plural(item.score, "action")}.`;
  }
  const score = `Score ${showScore(item.score)}.`;
  const { item_id: id, effect } = contributions.reduce((best, each) => (each.effect > best.effect ? each : best));
  if (effect <= 0) return `${score} No single item speaks for it.`;
  const without = showScore(item.score - effect);
  return `${score} It rests most on ${quoted(id)}: without it, the score would be ${without}.`;
}

// The heads to be shown; 0 means all. Weights are of the actions, oldest first, and last of the predicted position.
function chosenHeads(attention, layer, head) {
  return (attention ?? [])
    .flatMap((heads, l) => heads.map((weights, h) => ({ layer: l + 1, head: h + 1, weights })))
    .filter((each) => [0, each.layer].includes(layer) && [0, each.head].includes(head));
}

function tableOf({ contributions }, heads) {
  const strongest = Math.max(...contributions.map(({ effect }) => Math.abs(effect))) || 1;
  const heaviest = Math.max(...heads.flatMap(({ weights }) => weights)) || 1;
  const cells = (place) => heads.map(({ weights }) => heatCell(weights[place], heaviest));
  const rows = contributions.map(({ item_id: id, effect }, place) =>
    make("tr", {}, rowHead(nameTag(id)), effectCell(effect, strongest), ...cells(place)),
  );
  const itself = make("small", { textContent: "the predicted position" });
  if (heads.length) rows.push(make("tr", {}, rowHead(itself), make("td"), ...cells(contributions.length)));
  return [headOf(heads), make("tbody", {}, ...rows.reverse())]; // newest first, as the history is
}

function headOf(heads) {
  const layers = [...new Set(heads.map((each) => each.layer))];
  const rows = heads.length ? 2 : 1;
  const first = [
    make("th", { scope: "col", rowSpan: rows, className: "name-column", textContent: "Item" }),
    make("th", { scope: "col", rowSpan: rows, textContent: "Effect" }),
    ...layers.map((layer) => {
      const colSpan = heads.filter((each) => each.layer === layer).length;
      return make("th", { scope: "colgroup", colSpan, textContent: `Layer ${layer}` });
    }),
  ];
  const second = heads.map(({ head }) =>
    make("th", { scope: "col", "aria-label": `Head ${head}`, textContent: head }),
  );
  return make("thead", {}, make("tr", {}, ...first), ...(heads.length ? [make("tr", {}, ...second)] : []));
}

const rowHead = (content) => make("th", { scope: "row", className: "name-column" }, content);

function effectCell(effect, strongest) {
  const strength = bar(effect < 0 ? "against" : "for", Math.abs(effect) / strongest);
  return make("td", { className: "effect" }, strength, showEffect(effect));
}

// The root, because one head often looks at hardly more than one place, and the others shall not all be pale.
function heatCell(weight, heaviest) {
  const cell = make("td", { className: "heat", textContent: Math.round(weight * 100) });
  cell.style.setProperty("--heat", `${100 * Math.sqrt(weight / heaviest)}%`);
  return cell;
}
