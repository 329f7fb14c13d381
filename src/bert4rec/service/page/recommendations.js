// What the model recommends, best first.

import { bar, find, make, plural, refill, say, showScore } from "./elements.js";
import { nameOf, nameTag } from "./names.js";

export function startRecommendations({ choose, add, hide }) {
  const section = find("#recommendations");
  const status = find("[role=status]", section);
  const list = find("ol", section);

  function row({ item_id: id, score }, rank, share, isPopularity, isChosen) {
    const main = make(
      "button",
      {
        type: "button",
        className: "recommendation",
        "aria-pressed": String(isChosen),
        "data-key": `why ${rank}`,
        onclick: () => choose(isChosen ? null : id),
      },
      nameTag(id),
      bar("score", share),
      make("small", { textContent: isPopularity ? plural(score, "action") : `score ${showScore(score)}` }),
    );
    const button = (sign, label, key, act) =>
      make("button", {
        type: "button",
        className: key,
        textContent: sign,
        title: label,
        "aria-label": `${label}: ${nameOf(id)}`,
        "data-key": `${key} ${rank}`,
        onclick: () => act(id),
      });
    return make(
      "li",
      {},
      main,
      button("+", "Add to the history", "add", add),
      button("⊘", "Never recommend", "hide", hide),
    );
  }

  function show(answer, chosen) {
    const { items, fallback } = answer;
    const isPopularity = fallback === "popular";
    const rows = items.map((item, rank) => {
      const share = shareOf(item.score, items[0].score, isPopularity);
      return row(item, rank, share, isPopularity, item.item_id === chosen);
    });
    refill(list, rows);
    say(status, answer.model.arm ? `Answered by ${answer.model.arm}. ${noteOn(answer)}` : noteOn(answer));
  }

  const setBusy = (isBusy) => section.setAttribute("aria-busy", String(isBusy));
  return { show, setBusy };
}

// How likely an item is beside the first. The model was trained to make e^score proportional to the
// probability, so differences of scores have a meaning and their zero has none; counts are divided as they are.
function shareOf(score, best, isPopularity) {
  return isPopularity ? score / best : Math.exp(score - best);
}

function noteOn({ items, fallback, context }) {
  if (!items.length) return "There is nothing left to recommend.";
  if (fallback === "popular") {
    const isUnknown = context.unknown_items.length > 0;
    const reason = isUnknown ? "None of these items is known to the model" : "No history yet";
    return `${reason}: showing what is popular.`;
  }
  const legend = "Bars: how likely each is, beside the first. Choose one to see why.";
  return `After ${plural(context.used, "item")}. ${legend}`;
}
