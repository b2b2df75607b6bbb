"""Load a definition and check it against the contract, so that a mistake is one clear sentence.

A definition is a plain Python module (docs/model-zoo.md):

    def model(**params) -> nn.Module              required
    def loss(outputs, labels) -> Tensor           required for training
    def optimizer() -> edl.nn optimizer spec      required for training
    def feed(records, mode) -> (features, labels) required; mode: "train" | "evaluate" | "predict"
    def metrics() -> dict[str, Metric]            optional
    def reader(path, **params) -> RecordReader    optional
    class Callbacks                               optional
    def process_predictions(outputs, worker)      optional
"""
