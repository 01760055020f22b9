"""Build, load, sample and score the language models of the dialogue task."""
