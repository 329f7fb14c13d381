"""Apache Spark as an engine, for data that lives in a lake: the same answers as on one machine.

bert4rec.spark.recommend(df, "model", k=10) gives a Spark DataFrame. pyspark is imported when it is needed.
"""
