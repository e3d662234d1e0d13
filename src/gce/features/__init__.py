"""Features: states into feature space and back, one kind a file behind one contract (`base`)."""

from gce.features.autoencoder import Autoencoder
from gce.features.base import KINDS, Features, FeaturesConfig, StateShape, kind_named, register_features
from gce.features.bodies import Bodies
from gce.features.general import General
from gce.features.message_passing import MessagePassing
from gce.features.network import Network
from gce.features.published import Published

__all__ = ["KINDS", "Features", "FeaturesConfig", "StateShape", "kind_named", "register_features"]

for _kind in (MessagePassing, Autoencoder, Bodies, Network, Published, General):
    register_features(_kind)
