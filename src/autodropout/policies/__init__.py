"""Policies that come with the package: one JSON file each, opened by name with `autodropout.load("name")`."""
