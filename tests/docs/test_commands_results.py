#!/usr/bin/env python3
"""[test-all, long: runs programs of every page] Runs the commands of docs/results and docs/gallery.md, as test_commands.py does."""
import sys

import test_commands

if __name__ == "__main__":
    sys.exit(test_commands.main(results=True))
