"""Generate dialogues: personas, their stories and exchanges, written in the format of real data."""
