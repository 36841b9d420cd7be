"""Assertions for your own test suite, under the name that test suites look for: ``ao.testing``."""

from anyorder.verify.assertions import *  # noqa: F403
