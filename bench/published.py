"""The folders of the papers' profiles and networks, for the programs of bench/."""
import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HINT = "run tools/make_profiles.py and tools/make_networks.py, or set DDP_DATA"


def folder(kind):
    """build/KIND where tools/make_KIND.py has written it, else $DDP_DATA/KIND. kind: profiles or networks."""
    built = os.path.join(ROOT, "build", kind)
    return built if os.path.isdir(built) else os.path.join(os.environ.get("DDP_DATA", "data"), kind)
