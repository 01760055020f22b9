"""Write replies to a persona, the last turns and retrieved stories: the dialogue task."""
