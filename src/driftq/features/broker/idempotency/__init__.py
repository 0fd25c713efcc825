"""Keys of producers and consumers."""
