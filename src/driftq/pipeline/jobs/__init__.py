"""The jobs of the pipeline, and what all of them have in common."""
