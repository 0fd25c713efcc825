"""Records as columns, and the checksummed frames that contain them."""
