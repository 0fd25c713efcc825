"""How many histories a state machine plays: in `make test` more than other properties have examples."""

from hypothesis import settings

HISTORIES = 500 if settings.get_current_profile_name() == "ci" else settings().max_examples
