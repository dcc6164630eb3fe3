"""The scenarios of `./broker bench`, a module for each subject."""
