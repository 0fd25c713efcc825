"""Everything private to Spark, fenced."""
