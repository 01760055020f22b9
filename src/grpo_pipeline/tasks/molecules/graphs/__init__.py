"""Represent molecules as graphs of tensors: encoding, vocabulary, properties and drawings."""
