"""How to train."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    horizons: steps rolled out, growing; each for an equal share of the iterations.
    systems, fit_episodes, fit_steps: what operators are fitted on; rollouts: windows a system to predict.
    free_running: whether windows are rolled out from their first state; otherwise every step is predicted from the true
        state before it, and judged by the effects that its operator should have had. Where what is left to learn is
        small beside noise that grows with time, single steps teach more.
    fresh_share: of chunks and windows that open an episode. noise: largest observation noise added to some batches.
    patience: stop after so many validations without progress; 0 never.
    """

    iterations: int = 3000
    seed: int = 0
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    systems: int = 4
    fit_episodes: int = 8
    fit_steps: int = 12
    rollouts: int = 4
    horizons: tuple[int, ...] = (4, 16, 16, 16, 32, 32, 32, 48)
    free_running: bool = True
    fresh_share: float = 0.2
    noise: float = 0.1
    noise_share: float = 0.3
    clip: float = 1.0
    validate_every: int = 250
    checkpoint_every: int = 50
    patience: int = 0
