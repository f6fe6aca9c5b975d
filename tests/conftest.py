"""Property tests are the same in every run, and may take their time on a busy machine."""

from hypothesis import settings

settings.register_profile("mlmcgrad", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("mlmcgrad")
