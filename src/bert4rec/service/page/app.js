// The state is a history of item ids, or the id of a user whose history is stored, and the item to be explained. It
// lives in the address; what is on the screen is made from it and from the service's answers, so links, reloads and the
// back button just work.

import { readAddress, writeAddress } from "./address.js";
import { find, make, plural } from "./elements.js";
import { factsOf } from "./facts.js";
import { startHidden } from "./hidden.js";
import { startHistory } from "./history.js";
import { forgetNames, nameOf, remember, withoutName } from "./names.js";
import { startProblemLine } from "./problem.js";
import { startRecommendations } from "./recommendations.js";
import { startSearch } from "./search.js";
import { ask } from "./service.js";
import { startUser } from "./user.js";
import { startWhy } from "./why.js";

const K = 10;
const MOST_HIDDEN = 1000; // as many as are listed

let state = readAddress();
let pending = new AbortController();
// What the service has said, each with what it was asked, so that nothing is asked twice.
let service = null;
let stored = { about: null, history: [] };
let hidden = { isKnown: false, ids: new Set() };
let recommended = { about: null, answer: null };
let explained = { about: null, answer: null };

const problem = startProblemLine(tryAgain);
const isHidden = (id) => hidden.ids.has(id);
const [search, hideSearch] = [
  [find("#history .search"), add],
  [find("#hidden .search"), hide],
].map(([root, choose]) => startSearch(root, { choose, fail: failSearch, isHidden }));
const showHistory = startHistory((history) => go({ history, user: null }));
const showUser = startUser((user) => go({ user, item: null }));
const recommendations = startRecommendations({ choose: chooseItem, add, hide });
const hiddenItems = startHidden((id) => setHidden(id, false));
const why = startWhy(closeWhy);
const sample = find("#sample");

function go(change) {
  writeAddress({ ...state, ...change });
  state = readAddress();
  return update();
}

// The history on the screen: the visitor's own, or what is stored of a user.
function historyNow() {
  if (state.user === null) return state.history;
  return stored.about === state.user ? stored.history : [];
}

// Whom recommendations are asked for.
const subject = () => (state.user === null ? { history: state.history } : { user_id: state.user });

function add(id) {
  go({ history: [...historyNow(), id], user: null, ...(id === state.item && { item: null }) });
}

function hide(id) {
  setHidden(id, true);
}

// Everybody's recommendations change with it, so these are asked for again.
async function setHidden(id, isToBeHidden) {
  const { signal } = new AbortController(); // what was asked for is done, whatever else happens
  try {
    await ask(`v1/items/${encodeURIComponent(id)}/hidden`, null, signal, isToBeHidden ? "PUT" : "DELETE");
  } catch (error) {
    return problem.show(error);
  }
  hiddenItems.offerUndo(isToBeHidden ? id : null);
  hidden.isKnown = false;
  recommended.about = null;
  await update();
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
  if (await update()) [search, hideSearch].forEach((each) => each.again());
}

// Ask for whatever the state needs and is not there yet; true where all of it came.
// A later call makes an earlier one void.
async function update() {
  pending.abort();
  const { signal } = (pending = new AbortController());
  show();
  const loads = [loadService, loadHidden, loadNames, loadRecommendations, loadExplanation];
  try {
    await loadUser(signal);
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
  const current = models.filter((model) => model.state === "current");
  service = { versions: current.map((model) => model.version), samples };
  samples.forEach(({ history }) => remember(history));
  find("#facts").replaceChildren(...current.map((model) => make("span", { textContent: factsOf(model) })));
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

async function loadUser(signal) {
  if (state.user === null || stored.about === state.user) return;
  const about = state.user;
  const { events } = await ask(`v1/users/${encodeURIComponent(about)}/history`, null, signal);
  stored = { about, history: events.map((event) => event.item_id) };
  show();
}

async function loadHidden(signal) {
  if (hidden.isKnown) return;
  const answer = await ask(`v1/items/hidden?limit=${MOST_HIDDEN}`, null, signal);
  remember(answer.items.filter((item) => item.title !== null));
  const ids = answer.items.filter((item) => item.hidden_now).map((item) => item.item_id);
  hidden = { isKnown: true, ids: new Set(ids) };
  hiddenItems.fill(answer);
}

// Ranking items by an empty history is a way to hear their titles.
async function loadNames(signal) {
  const items = withoutName([...new Set(historyNow())]);
  if (!items.length) return;
  remember((await ask("v1/rank", { history: [], items }, signal)).items);
  remember(withoutName(items).map((item_id) => ({ item_id, title: null })));
  show();
}

async function loadRecommendations(signal) {
  const about = JSON.stringify(subject());
  if (recommended.about === about) return;
  const answer = await ask("v1/recommend", { ...subject(), k: K }, signal);
  const isAnotherModel = service && !service.versions.includes(answer.model.version);
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
    answer = await ask("v1/explain", { history: historyNow(), item_id: state.item }, signal);
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
  const { item, user } = state;
  const history = historyNow();
  const isRecommended = recommended.about === JSON.stringify(subject());
  const isExplained = item === null || explained.about === JSON.stringify(state);
  showUser(user);
  showHistory(history, isRecommended ? recommended.answer.context : null, user);
  recommendations.setBusy(!isRecommended);
  if (recommended.answer) recommendations.show(recommended.answer, item);
  why.setBusy(!isExplained);
  if (isExplained) why.show(item, explained.answer, recommended.answer?.model.arm);
  const isSample = (each) => user === null && idsOf(each).join() === history.join();
  const number = service?.samples.findIndex(isSample);
  sample.value = number >= 0 ? number : "";
  document.title = history.length ? `What comes next after ${nameOf(history.at(-1))}?` : "What comes next?";
}

sample.addEventListener("change", () => {
  const chosen = service.samples[sample.value];
  if (chosen) go({ history: idsOf(chosen), item: null, user: null });
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
