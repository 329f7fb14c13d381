// Which model answers, since when, what it was trained on and how good it was.

import { plural, showMoment } from "./elements.js";

const PROTOCOLS = { full: "among all items", sampled: "among a sample of items" };

export function factsOf(model) {
  const { name, version, num_items: numItems, serving_since: since, arm, share } = model;
  const here = since ? `, serving since ${showMoment(since)}` : "";
  const inTest = arm ? `${arm} (share ${share}): ` : ""; // where several models are served side by side
  return [`${inTest}Model ${name}, version ${version}, ${plural(numItems, "item")}${here}.`, ...trainingOf(model)].join(" ");
}

function trainingOf({ trained, trained_until: until }) {
  if (!trained) return []; // made by an earlier version
  const seen = `${trained.model}, trained on ${plural(trained.actions, "action")}${until ? ` until ${showMoment(until)}` : ""}`;
  const metrics = Object.entries(trained.metrics).map(
    ([protocol, value]) => `${value.toFixed(3)} ${PROTOCOLS[protocol] ?? protocol}`,
  );
  return [metrics.length ? `${seen}; NDCG@10 on test items ${metrics.join(", ")}.` : `${seen}.`];
}
