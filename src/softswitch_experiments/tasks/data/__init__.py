"""Data sets that come with the package; README.md beside this file has their sources and licences."""
