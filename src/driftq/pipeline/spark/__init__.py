"""Code that depends on private names of Spark and PySpark; no other package uses them."""
