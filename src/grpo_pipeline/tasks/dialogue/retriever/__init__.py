"""Find stories with weights that are learned from the reward of the replies that each story leads to."""
