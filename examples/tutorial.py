"""The tutorial of the documentation, in cells: `make docs` shows it with its output."""

# %% [markdown]
# ## A log
#
# All you need is a table of who did what, and when. We take the log of the built-in shop: 2,000 made-up visitors,
# 500 items. It is a DataFrame, as yours may be.

# %%
import bert4rec

shop = bert4rec.prepare("synthetic")
log = shop.to_pandas()
print(log.head())

# %% [markdown]
# ## A dataset
#
# `prepare` takes a DataFrame, a file, several files or the name of a data set. Columns with usual names are recognised;
# here we name them. Titles come from a table of their own.

# %%
titles = shop.items().select("id", "title")
dataset = bert4rec.prepare(log, user="user", item="item", time="time", items=titles)
print(dataset)

# %% [markdown]
# What should you know before you trust numbers on this data?

# %%
for warning in dataset.warnings():
    print("-", warning)

# %% [markdown]
# The [guide to evaluation](guides/evaluation.md) explains what each warning means.
#
# ## Training
#
# The last item of each user is for the test, the one before for validation. While we are still choosing, we leave
# the test items alone: `test=False`. The preset `demo` fits this small shop. We take only some of its steps, so that
# this page is built in seconds. Leave both out for your own data: the number of steps then follows from its size.

# %%
few = {"training.steps": 300, "training.validate_every": 100}
bert = bert4rec.train(dataset, model="bert4rec", preset="demo", settings=few, test=False)
few = {"training.steps": 150, "training.validate_every": 50}
sasrec = bert4rec.train(dataset, model="sasrec", preset="demo", settings=few, test=False)
popular = bert4rec.train(dataset, model="pop", test=False)
print(bert.history.to_pandas()[["step", "loss", "value"]])

# %% [markdown]
# `value` is the NDCG@10 on the validation items. It still rises, and `train` warns about it: with more steps BERT4Rec
# gets better. It learns more slowly than SASRec, which sees an answer at every position.
#
# ## Which one is better?
#
# Metrics alone do not say how sure a difference is; `compare` does, user by user.

# %%
for run in (popular, bert, sasrec):
    metrics = run.metrics["valid"]["full"]
    print(f"{run.model:10} HR@10 {metrics['HR@10']:.3f}   NDCG@10 {metrics['NDCG@10']:.3f}")

# %%
print(bert4rec.compare(bert, sasrec, split="valid", protocol="full"))

# %% [markdown]
# ## The test
#
# The choice is made. `refit` trains a fresh model on everything but the test items, and looks at those once.

# %%
best = max((bert, sasrec), key=lambda run: run.metrics["valid"]["full"]["NDCG@10"])
final = best.refit()
evaluation = final.evaluate(split="test", k=(5, 10, 20))
print(evaluation.to_pandas()[["model", "protocol", "HR@5", "HR@20", "NDCG@10"]])

# %% [markdown]
# ## Recommendations
#
# For one history, oldest item first, also of somebody who is not in the log:

# %%
recommender = bert4rec.load(final)
for item in recommender.recommend(["item-00184", "item-00146", "item-00179"], k=5).items:
    print(f"{item.score:6.2f}  {item.item_id}  {item.title}")

# %% [markdown]
# For a user of the dataset, and for everybody at once, as a DataFrame:

# %%
print(recommender.recommend_user("user-00623", k=1).items[0].title)

# %%
everybody = recommender.recommend_many(dataset, k=5).to_pandas()
print(everybody[["user", "rank", "title", "score"]].head(10))

# %% [markdown]
# Why that item? `explain` says how much its score owes to each past action:

# %%
history = ["item-00184", "item-00146", "item-00179"]
first = recommender.recommend(history, k=1).items[0]
print(first.title)
for past in recommender.explain(history, first.item_id).contributions:
    print(f"{past.effect:+.2f}  {past.title}")

# %% [markdown]
# ## Into production
#
# An exported model needs no PyTorch.

# %%
folder = final.export("model")
print(bert4rec.load(folder).recommend(history, k=1).items[0].title)

# %% [markdown]
# `bert4rec serve model` answers over HTTP: [Serving](guides/serving.md).
#
# Next: [your own log](guides/own-log.md), [DataFrames](guides/dataframes.md),
# [choosing a model](guides/choosing.md).
