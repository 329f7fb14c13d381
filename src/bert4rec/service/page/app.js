// The state is a history of item ids and the item to be explained. It lives in the address; what is on the
// screen is made from it and from the service's answers, so links, reloads and the back button just work.

import { readAddress, writeAddress } from "./address.js";
import { find, make, plural } from "./elements.js";
import { startHistory } from "./history.js";
import { forgetNames, nameOf, remember, withoutName } from "./names.js";
import { startProblemLine } from "./problem.js";
import { startRecommendations } from "./recommendations.js";
import { startSearch } from "./search.js";
import { ask } from "./service.js";
import { startWhy } from "./why.js";

const K = 10;

let state = readAddress();
let pending = new AbortController();
// What the service has said, each with what it was asked, so that nothing is asked twice.
let service = null;
let recommended = { about: null, answer: null };
let explained = { about: null, answer: null };

const problem = startProblemLine(tryAgain);
const search = startSearch({ choose: add, fail: failSearch });
const showHistory = startHistory((history) => go({ history }));
const recommendations = startRecommendations({ choose: chooseItem, add });
const why = startWhy(closeWhy);
const sample = find("#sample");

function go(change) {
  writeAddress({ ...state, ...change });
  state = readAddress();
  return update();
}

function add(id) {
  go({ history: [...state.history, id], ...(id === state.item && { item: null }) });
}

async function chooseItem(item) {
  await go({ item });
  if (item !== null) why.reveal();
}

function closeWhy() {
  (find("[aria-pressed=true]") ?? find("#recommendations")).focus(); // the button itself is about to go
  chooseItem(null);
}

function failSearch(error) {
  service = null; // so that trying again asks the service for something
  problem.show(error);
}

async function tryAgain() {
  if (await update()) search.again();
}

// Ask for whatever the state needs and is not there yet; true where all of it came.
// A later call makes an earlier one void.
async function update() {
  pending.abort();
  const { signal } = (pending = new AbortController());
  show();
  const loads = [loadService, loadNames, loadRecommendations, loadExplanation];
  try {
    await Promise.all(loads.map((load) => load(signal)));
    if (signal.aborted) return false;
    problem.clear();
    return true;
  } catch (error) {
    if (!signal.aborted) problem.show(error);
    return false;
  }
}

async function loadService(signal) {
  if (service) return;
  const questions = ["v1/models", "v1/samples"].map((path) => ask(path, null, signal));
  const [{ models }, { samples }] = await Promise.all(questions);
  service = { ...models.find((model) => model.state === "current"), samples };
  samples.forEach(({ history }) => remember(history));
  const { name, version, num_items: numItems } = service;
  find("#facts").textContent = `Model ${name}, version ${version}, ${plural(numItems, "item")}.`;
  sample.replaceChildren(
    make("option", { value: "", textContent: "choose…" }),
    ...samples.map(({ user_id, history }, number) =>
      make("option", { value: number, textContent: `${user_id} (${plural(history.length, "item")})` }),
    ),
  );
  find("#samples").hidden = !samples.length;
  show();
}

// Another model has taken over: it may know other items, by other titles, and see other reasons.
function forgetService() {
  service = null;
  explained = { about: null, answer: null };
  forgetNames();
}

// Ranking items by an empty history is a way to hear their titles.
async function loadNames(signal) {
  const items = withoutName([...new Set(state.history)]);
  if (!items.length) return;
  remember((await ask("v1/rank", { history: [], items }, signal)).items);
  remember(withoutName(items).map((item_id) => ({ item_id, title: null })));
  show();
}

async function loadRecommendations(signal) {
  const about = JSON.stringify(state.history);
  if (recommended.about === about) return;
  const answer = await ask("v1/recommend", { history: state.history, k: K }, signal);
  const isAnotherModel = service && service.version !== answer.model.version;
  if (isAnotherModel) forgetService();
  recommended = { about, answer };
  remember(answer.items);
  show();
  if (isAnotherModel) update();
}

async function loadExplanation(signal) {
  const about = JSON.stringify(state);
  if (state.item === null || explained.about === about) return;
  let answer;
  try {
    answer = await ask("v1/explain", { history: state.history, item_id: state.item }, signal);
    remember([answer.item, ...answer.contributions]);
  } catch (error) {
    if (error.code !== "unknown_item") throw error;
    answer = `The model does not know an item with this id: ${state.item}.`;
  }
  explained = { about, answer };
  show();
}

const idsOf = (user) => user.history.map((item) => item.item_id);

function show() {
  const { history, item } = state;
  const isRecommended = recommended.about === JSON.stringify(history);
  const isExplained = item === null || explained.about === JSON.stringify(state);
  showHistory(history, isRecommended ? recommended.answer.context : null);
  recommendations.setBusy(!isRecommended);
  if (recommended.answer) recommendations.show(recommended.answer, item);
  why.setBusy(!isExplained);
  if (isExplained) why.show(item, explained.answer);
  const number = service?.samples.findIndex((each) => idsOf(each).join() === history.join());
  sample.value = number >= 0 ? number : "";
  document.title = history.length ? `What comes next after ${nameOf(history.at(-1))}?` : "What comes next?";
}

sample.addEventListener("change", () => {
  const chosen = service.samples[sample.value];
  if (chosen) go({ history: idsOf(chosen), item: null });
});
window.addEventListener("popstate", () => {
  state = readAddress();
  update();
});
// By hand: following the link would put its #… in the place of the state.
find(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  find("#recommendations").focus();
});
update();
