"""What stands at the head of every benchmark's report: where its figures come from."""
