"""Training restricted Boltzmann machines: contrastive divergence against what removes its bias."""
