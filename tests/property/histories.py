"""How many histories a state machine plays, and how long they are: in `make test` more and shorter ones.

What takes many steps to come about is for the long walks beside the machines, and for the other profiles.
"""

from hypothesis import settings

_CI = settings.get_current_profile_name() == "ci"
HISTORIES = 500 if _CI else settings().max_examples
STEPS = 30 if _CI else 50
