"""Source, sink and the job `ingest` over Spark Connect: what `test_connect` runs in a process of its own."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from hedgerow.pipeline.jobs.ingest import write_bronze
from hedgerow.pipeline.tables import read_table

remote, journal, tables, broker = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
messages = spark.read.format("hedgerow").option("journals", journal).load()
print("source", messages.where("topic = 'farm/1'").count())

for _ in range(2):  # The second run has nothing new.
    stream = spark.readStream.format("hedgerow").option("journals", journal).load()
    query = write_bronze(stream, tables, "delta").trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the batch took too long"
bronze = read_table(spark, tables, "bronze")
print("bronze", bronze.count(), bronze.select("position").distinct().count())

alarms = bronze.where("topic = 'farm/1'").selectExpr("'alarm' AS topic", "payload", "1 AS qos")
options = {"broker": broker, "query": "alarms"}
alarms.write.format("hedgerow").options(**options).mode("append").save()
spark.stop()
