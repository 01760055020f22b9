"""An example of a task of one's own: guess the digit in a picture."""
