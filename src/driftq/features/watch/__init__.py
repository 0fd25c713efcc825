"""Live reading: sessions, feeds that merge many topics into one sequence of events, and pages rendered once for all."""
