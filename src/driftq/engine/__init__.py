"""What a topic means: append, diff, delete, floors, retention, recovery. One loop owns all of it."""
