"""The machinery under the lesson: runs, checkpoints, a fast sampler, recordings.

Skip this folder on a first reading. No file in it imports one of the lesson's.
"""
