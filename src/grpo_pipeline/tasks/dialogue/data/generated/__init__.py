"""Generated dialogues: personas, their stories and exchanges, written in the format that real ones are read from."""
