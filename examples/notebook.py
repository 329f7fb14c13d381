"""A DataFrame in, three models compared on validation, the best one refitted, recommendations for everybody out."""

import bert4rec

log = bert4rec.prepare("synthetic").to_pandas()  # a made-up shop; yours: pd.read_csv("events.csv")
dataset = bert4rec.prepare(log, user="user", item="item", time="time")
few = {"training.steps": 60, "training.validate_every": 30, "training.batch_size": 64}  # leave this out
models = ("bert4rec", "sasrec", "fpmc")
runs = [bert4rec.train(dataset, model=model, settings=few, test=False) for model in models]
print(bert4rec.compare(*runs, split="valid", protocol="full"))
best = max(runs, key=lambda run: run.metrics["valid"]["full"]["NDCG@10"]).refit()
print(best.model, best.metrics["test"]["full"])
recommendations = bert4rec.load(best).recommend_many(dataset, k=10).to_pandas()
print(recommendations.head(10))
