"""The data pipeline on Spark: session, source, sink and jobs."""
