"""What acts in the step of an arm that has it: one part a file."""
