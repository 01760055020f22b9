"""The dialogue task: write replies to a persona, the last turns and retrieved stories."""
