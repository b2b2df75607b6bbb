"""Other people's trainers under `edl launch`: Hugging Face's Trainer, and Lightning.

    from edl.integrations.transformers import ElasticTrainer
    from edl.integrations.lightning import EdlCallback, EdlEnvironment

Each module imports its library when it is imported, and says in a sentence what to install where
that is missing. What both have in common: the shares of a pass (passes.py), a loader of them
(loader.py), and what replicas say to each other and keep (replicas.py).
"""
