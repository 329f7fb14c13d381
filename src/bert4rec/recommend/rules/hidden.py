"""An exported model that recommends all items but some."""

from bert4rec.recommend.engine import Numbers
from bert4rec.recommend.onnx_engine import OnnxEngine
from bert4rec.recommend.recommender import Recommender


def without(recommender: Recommender, numbers: Numbers) -> Recommender:
    """The same model, by which none of these items is recommended or similar to another; itself if there are none.

    They are left out as items are that it was never trained on, by their bias. So they cost a question nothing, however
    many they are.
    """
    if not len(numbers):
        return recommender
    engine = recommender.ranker.engine
    assert isinstance(engine, OnnxEngine)
    return Recommender(
        engine.without(numbers),
        recommender.catalogue,
        name=recommender.name,
        version=recommender.version,
        repeats="exclude" if recommender.exclude_seen else "keep",
        attributes=recommender.filters.attributes,
        trained=recommender.trained,
    )
