"""Live reading: sessions, feeds that merge many topics into one row of events, batches rendered once for all."""
