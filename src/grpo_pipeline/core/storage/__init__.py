"""Files of a training: checkpoints and final weights as safetensors and JSON; nothing is pickled."""
