"""Parameters of an arm's objective, a part a file: what an arm does not name does not exist for it."""
