"""The previous place of the settings of ``prediction``."""

from speculators.prediction.speculator import PredictionConfig as PredictionConfig
