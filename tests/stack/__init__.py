"""Tests of `./broker`: the environment, embedded servers, supervisor, demo and test command."""
