"""Where the weights of the image encoder come from: files, pretraining, and which of them are trained."""
