"""Tests run from anywhere, on a CPU, without a network."""
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# Tiny models: a second thread costs more than it does. Processes that a test starts inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
