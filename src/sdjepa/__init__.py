"""Latent world models from pixels, along one path; a stage imports only from stages to its left:

    envs -> data -> model -> objectives -> train -> plan -> score -> compass -> report -> cli

`errors`, `seeds`, `config` and `runs` lie below all stages.
"""

__version__ = "0.1.0"
