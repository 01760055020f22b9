"""Tests leave nothing in this process that reaches the next: the tests of this file run in their order."""

import os

import mlflow

STORE = "sqlite:////nowhere/mlflow.db"


def test_a_test_may_choose_a_store():
    mlflow.set_tracking_uri(STORE)
    assert os.environ["MLFLOW_TRACKING_URI"] == STORE


def test_the_next_one_does_not_find_it():
    assert "MLFLOW_TRACKING_URI" not in os.environ
    assert not mlflow.tracking.is_tracking_uri_set()
