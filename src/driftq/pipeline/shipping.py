"""Code by value: what runs in Spark's processes elsewhere is pickled whole, so nothing of ours is installed there.

What a reader or a writer names at module level must then be there: the standard library, pyarrow (which Spark needs
itself) and, for writers, msgspec. A module that needs more is imported by a function that can do without it.
"""


def ship_by_value() -> None:
    """Have PySpark's pickler carry our modules by value from here on."""
    from pyspark import cloudpickle

    import driftq

    cloudpickle.register_pickle_by_value(driftq)
