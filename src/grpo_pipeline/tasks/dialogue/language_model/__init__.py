"""Language models of the dialogue task: build or load one, sample replies, compute their log-probabilities."""
